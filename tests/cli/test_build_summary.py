"""What a build prints of kinds whose rows it counts instead of listing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sample_tables import make_row, make_table

pytest.importorskip("torch")

from warmup.cli.build_render import spell
from warmup.core.buckets import Bucket
from warmup.core.method import CandidateSource, Search, SearchCounts
from warmup.core.rows import Tuned
from warmup.keys.kind import Kind
from warmup.tuning.report import BucketResult, BuildReport, Judgement

LAUNCH = "launch triton_poi_fused_mul x={} args=*bf16 source=3f2a9c0d41b7e865"
TOY = "toy cat m={} n=4 via=sum f32 tag=7"


@pytest.fixture
def print_rows(tmp_path: Path) -> Callable[..., list[str]]:
    """``print_rows(key, ...)``: the lines that a build of seqlen=16 prints that asked for these."""

    def print_them(*keys: str, timings: tuple[Tuned, ...] = ()) -> list[str]:
        rows = {key: make_row() for key in keys}
        path = tmp_path / "t.json"
        path.write_text("{}")
        bucket = Bucket((("seqlen", 16),))
        result = BucketResult(
            bucket=bucket,
            keys=keys,
            tuned=2,
            judgement=Judgement(error=0.0, limit=1.0),
            seconds=1.0,
        )
        return [*spell(BuildReport(path, make_table(rows), "0" * 64, (result,), timings, 1.0))]

    return print_them


def test_rows_with_a_summary_are_one_line(
    print_rows: Callable[..., list[str]], toy_kind: Kind
) -> None:
    """How many rows, the name of many, the mean speed-up and over what; no line for each."""
    for key, line in (
        (LAUNCH, "2 launch configs, 1.17x over the config of default mode"),
        (TOY, "2 toys, 1.17x over the toy on top"),
    ):
        printed = print_rows(key.format(16), key.format(32))
        assert line in printed, key
        assert not any("seqlen=16" in each for each in printed), key


def test_the_configs_that_were_tried_are_counted(print_rows: Callable[..., list[str]]) -> None:
    """One line sums the searches of the kernels tuned now, by source, with what was left out."""
    keys = LAUNCH.format(16), LAUNCH.format(32)
    added = ((CandidateSource.GRID, 20), (CandidateSource.DESCENT, 7))
    counts = SearchCounts(search=Search.DEFAULT, listed=2, added=added, spilling=1, left_out=3)
    timings = tuple(Tuned(key, make_row(), (), counts) for key in keys)
    assert (
        "candidates tried for 2 kernels: 4 listed, 40 grid, 14 descent, 2 spilling, 6 left out"
        in print_rows(*keys, timings=timings)
    )
    assert not any("tried for" in line for line in print_rows(*keys))
