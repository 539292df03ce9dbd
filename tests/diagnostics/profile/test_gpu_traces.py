"""Traces of models on an H100: what is attributed, counted, and as fast as its row."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from warmup.bench.attribution import Reason
from warmup.bench.profile import KernelLine, Profile, profile_trace
from warmup.bench.trace import read_trace
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.table.store import read

DATA = Path(__file__).resolve().parents[1] / "data"
TABLES = Path(__file__).resolve().parents[3] / "tables/nvidia-h100-80gb-hbm3"


class Served(NamedTuple):
    """A trace of a model's table, four layers, five calls, and the operations of one call."""

    trace: str
    table: str
    counted: int  # by torch.utils.flop_counter; of the ViT with attention, torch 2.11 and 2.13
    others: int  # what that counts on a GPU alone: the product of rotary


SERVED = (
    Served("vit-table", "zoo.vit.bf16", 814_987_493_376, 0),
    Served("qwen2-7b-tokens-table-graphs", "zoo.qwen2-7b-tokens.bf16", 94_539_612_160, 128),
)


@pytest.fixture(scope="module", params=SERVED, ids=[served.trace for served in SERVED])
def served(request: pytest.FixtureRequest) -> tuple[Served, Profile]:
    """A profile of a model that was served from its table: kernel by kernel, or a CUDA graph."""
    trace = read_trace(DATA / f"h100-{request.param.trace}.json.gz")
    return request.param, profile_trace(trace, read(TABLES / f"{request.param.table}.json"))


def matmuls_of(profile: Profile) -> list[KernelLine]:
    """The lines whose row has a whole time of its own and decides a matmul or a convolution."""
    own = [line for line in profile.lines if line.ratio is not None]
    return [line for line in own if {*map(kind_of, line.keys)} <= {GEMM, CONVOLUTION}]


def test_all_device_time_is_attributed(served: tuple[Served, Profile]) -> None:
    """At least 99 % is of rows, library kernels, or copies and fills, and none is a miss."""
    _, found = served
    assert found.share_of(Reason.UNTRACED) <= 0.01
    assert found.share_of(Reason.MISS) == 0
    assert len(found.lines) > 10


def test_operations_are_those_of_torchs_counter(served: tuple[Served, Profile]) -> None:
    wanted, found = served
    (bucket,) = found.buckets
    flops = [(line.work.flops or 0) * len(line.us) for line in bucket.lines if line.work]
    assert sum(flops) / bucket.iterations == wanted.counted + wanted.others


def test_a_matmul_takes_what_its_row_says(served: tuple[Served, Profile]) -> None:
    """Within 10 % in 99 % of the time; others are faster than their rows, from a warm L2."""
    _, found = served
    gemms = matmuls_of(found)
    total = sum(line.total_us for line in gemms)
    assert total > found.device_us / 2
    assert sum(line.total_us for line in gemms if not line.has_drifted) > 0.99 * total
    assert all(line.ratio < 1 for line in gemms if line.ratio and line.has_drifted)
