"""What a build says of rows that are too slow somewhere in their range: which bucket to add."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sample_tables import make_key, make_row, make_table

pytest.importorskip("torch")

from warmup.cli.build_render import document, spell
from warmup.core.buckets import Bucket
from warmup.tuning.report import BucketResult, BuildReport, Judgement

Reports = Callable[..., BuildReport]
SLOW = ((257, 1.24), (408, 1.02), (560, 1.0))
SLOWER = ((257, 1.04), (408, 1.31), (560, 1.0))
FAST = ((257, 1.1), (408, None), (560, 1.03))


@pytest.fixture
def make_report(tmp_path: Path) -> Reports:
    """``make_report(SLOW, FAST)``: a build of seqlen=257..560, with a row for each argument."""

    def make(*alongs: tuple[tuple[int, float | None], ...]) -> BuildReport:
        rows = {}
        for number, along in enumerate(alongs):
            row = make_row()
            key = make_key("257..560", n=64 * (number + 1))
            rows[key] = replace(row, evidence=replace(row.evidence, along=along))
        path = tmp_path / "t.json"
        path.write_text("{}")
        bucket = Bucket((("batch", 1), ("seqlen", 560)), (("seqlen", 257),))
        result = BucketResult(
            bucket=bucket,
            keys=tuple(rows),
            tuned=0,
            judgement=Judgement(error=0.0, limit=1.0),
            seconds=1.0,
        )
        return BuildReport(path, make_table(rows), "0" * 64, (result,), (), 1.0)

    return make


def test_rows_far_from_the_bound_name_the_bucket_to_add(make_report: Reports) -> None:
    """How many rows, the worst of them and where, and the middle of the bucket."""
    assert (
        "batch=1,seqlen=257..560: 2 rows are up to 1.31x as slow as the best at size 408: "
        "add the bucket batch=1,seqlen=408"
    ) in list(spell(make_report(SLOW, SLOWER, FAST)))
    # A tenth is not above it, and what was not timed is not held against a row.
    assert "add the bucket" not in "".join(spell(make_report(FAST)))


def test_json_has_the_bucket_and_the_rows(make_report: Reports) -> None:
    found = json.loads(json.dumps(document(make_report(FAST, SLOW))))
    assert found["splits"] == [
        {
            "bucket": "batch=1,seqlen=257..560",
            "keys": [make_key("257..560", n=128)],
            "size": 257,
            "ratio": 1.24,
            "add": {"batch": 1, "seqlen": 408},
        }
    ]
