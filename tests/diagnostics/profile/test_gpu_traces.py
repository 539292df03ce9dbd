"""Traces of a ViT on an H100: what is attributed, counted, and as fast as its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmup.diagnostics.profile.attribution import Reason
from warmup.diagnostics.profile.profile import Profile, profile_trace
from warmup.diagnostics.profile.trace import read_trace
from warmup.diagnostics.profile.trace_file import TraceFile
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT / "docs/benchmarks/results/traces"
TABLE = ROOT / "tables/nvidia-h100-80gb-hbm3/zoo.vit.bf16.json"
COUNTED = 814_987_493_376  # by torch.utils.flop_counter for this model and batch, torch 2.11
ATTENTION = 184_506_777_600  # of that, of four layers


@pytest.fixture(scope="module", params=["default", "table", "table-graphs"])
def profile(request: pytest.FixtureRequest) -> tuple[str, Profile]:
    """A profile with the ViT's table, and how the model was served."""
    trace = read_trace(TraceFile(TRACES / f"h100-vit-{request.param}.json.gz"))
    return request.param, profile_trace(trace, read(TABLE))


def test_all_device_time_is_attributed(profile: tuple[str, Profile]) -> None:
    """At least 99 % is of rows, misses, library kernels, or copies and fills."""
    _, found = profile
    assert found.share_of(Reason.UNTRACED) <= 0.01
    assert len(found.lines) > 10


def test_operations_are_those_of_torchs_counter(profile: tuple[str, Profile]) -> None:
    """To the last one; in a CUDA graph torch's trace lacks what attention was called with."""
    name, found = profile
    (bucket,) = found.buckets
    counted = sum((line.flops or 0) * len(line.us) for line in found.lines) / bucket.iterations
    assert counted == COUNTED - (ATTENTION if name == "table-graphs" else 0)


def test_a_matmul_takes_what_its_row_says(profile: tuple[str, Profile]) -> None:
    """Within 10 %, or the row is named as drifted: in default mode another kernel convolves."""
    name, found = profile
    own = [line for line in found.lines if line.ratio is not None]
    gemms = [line for line in own if {*map(kind_of, line.keys)} <= {GEMM, CONVOLUTION}]
    assert sum(line.total_us for line in gemms) > found.device_us / 2
    drifted = [line.name for line in gemms if line.has_drifted]
    assert [each.split("<")[0] for each in drifted] == (
        ["void implicit_convolve_sgemm"] if name == "default" else []
    )
