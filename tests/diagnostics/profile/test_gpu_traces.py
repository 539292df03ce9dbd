"""Traces of models on an H100: what is attributed, counted, and as fast as its row."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from warmup.diagnostics.profile.attribution import Reason
from warmup.diagnostics.profile.profile import KernelLine, Profile, profile_trace
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


def matmuls_of(profile: Profile) -> list[KernelLine]:
    """The lines whose row has a whole time of its own and decides a matmul or a convolution."""
    own = [line for line in profile.lines if line.ratio is not None]
    return [line for line in own if {*map(kind_of, line.keys)} <= {GEMM, CONVOLUTION}]


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
    gemms = matmuls_of(found)
    assert sum(line.total_us for line in gemms) > found.device_us / 2
    drifted = [line.name for line in gemms if line.has_drifted]
    assert [each.split("<")[0] for each in drifted] == (
        ["void implicit_convolve_sgemm"] if name == "default" else []
    )


class Served(NamedTuple):
    """A trace of a model's table, and per bucket the operations of one call."""

    trace: str
    table: Path
    counted: tuple[int, ...]  # by torch.utils.flop_counter, torch 2.13, on the CPU
    others: tuple[int, ...]  # what that counts on a GPU alone: attention, the product of rotary


# A table that was built again since is kept beside its traces.
LLAMA = TRACES / "h100-llama3-8b-tokens-rows.json"
QWEN = ROOT / "tables/nvidia-h100-80gb-hbm3/zoo.qwen2-7b-tokens.bf16.json"
SERVED = (
    Served("llama3-8b-tokens-table", LLAMA, (89_456_115_712,), (2_097_280,)),
    Served("llama3-8b-tokens-table-graphs", LLAMA, (89_456_115_712,), (128,)),
    Served("qwen2-7b-tokens-table", QWEN, (94_539_612_160,), (1_835_136,)),
    Served("qwen2-7b-tokens-table-graphs", QWEN, (94_539_612_160,), (128,)),
    Served(
        "bert-large-table",
        TRACES / "h100-bert-large-rows.json",
        (38_656_802_816, 618_508_845_056),
        (2_415_919_104, 38_654_705_664),
    ),
)


@pytest.fixture(scope="module", params=SERVED, ids=[served.trace for served in SERVED])
def served(request: pytest.FixtureRequest) -> tuple[Served, Profile]:
    """A profile of a model of transformers, served from its table, four layers, five calls."""
    trace = read_trace(TraceFile(TRACES / f"h100-{request.param.trace}.json.gz"))
    return request.param, profile_trace(trace, read(request.param.table))


def test_all_device_time_of_a_language_model_is_attributed(served: tuple[Served, Profile]) -> None:
    """At least 99 % is of rows, library kernels, or copies and fills, and none is a miss."""
    _, found = served
    assert found.share_of(Reason.UNTRACED) <= 0.01
    assert found.share_of(Reason.MISS) == 0


def test_operations_of_a_language_model_are_counted(served: tuple[Served, Profile]) -> None:
    """Those of torch's counter, and what that does not count on a CPU."""
    wanted, found = served
    counted = [
        sum((line.flops or 0) * len(line.us) for line in bucket.lines) / bucket.iterations
        for bucket in found.buckets
    ]
    assert counted == [sum(pair) for pair in zip(wanted.counted, wanted.others, strict=True)]


def test_a_matmul_of_a_language_model_takes_what_its_row_says(
    served: tuple[Served, Profile],
) -> None:
    """Within 10 % in 90 % of the time; others are faster than their rows, from a warm L2."""
    _, found = served
    gemms = matmuls_of(found)
    total = sum(line.total_us for line in gemms)
    assert total > found.device_us / 2
    assert sum(line.total_us for line in gemms if not line.has_drifted) > 0.9 * total
    assert {line.ratio < 1 for line in gemms if line.ratio and line.has_drifted} == {True}
