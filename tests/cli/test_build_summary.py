"""What a build prints of kinds whose rows it counts instead of listing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from warmup.buckets.bucket import Bucket
from warmup.cli.build_render import spell
from warmup.core.rows import Row
from warmup.keys.kind import Kind
from warmup.table import Table
from warmup.tuning.judge import Judgement
from warmup.tuning.report import BucketResult, BuildReport

LAUNCH = "launch triton_poi_fused_mul x={} args=*bf16 source=3f2a9c0d41b7e865"
TOY = "toy cat m={} n=4 via=sum f32 tag=7"


@pytest.fixture
def print_rows(
    make_table: Callable[..., Table],
    make_row: Callable[..., Row],
    tmp_path: Path,
) -> Callable[..., list[str]]:
    """``print_rows(key, ...)``: the lines that a build of seqlen=16 prints that asked for these."""

    def print_them(*keys: str) -> list[str]:
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
        return [*spell(BuildReport(path, make_table(rows), "0" * 64, (result,), (), 1.0))]

    return print_them


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (LAUNCH, "2 launch configs, 1.17x over the config inductor lists first"),
        (TOY, "2 toys, 1.17x over the toy on top"),
    ],
)
def test_rows_with_a_summary_are_one_line(
    print_rows: Callable[..., list[str]], toy_kind: Kind, key: str, line: str
) -> None:
    """How many rows, the name of many, the mean speed-up and over what; no line for each."""
    printed = print_rows(key.format(16), key.format(32))
    assert line in printed
    assert not any("seqlen=16" in each for each in printed)
