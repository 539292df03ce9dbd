"""The review of the tables that ship."""

from __future__ import annotations

from pathlib import Path

from warmup.table.review import Level, peaks_in, review, review_table
from warmup.table.store import read

TABLES = Path(__file__).resolve().parents[2] / "tables"


def test_no_number_of_a_shipped_table_is_probably_wrong() -> None:
    """Held against the peaks of its kind of GPU, of an H200 those that were measured alone."""
    h200_peaks = peaks_in(TABLES / "nvidia-h200" / "zoo.llama3-8b.bf16.json")
    for path in sorted(TABLES.rglob("*.json")):
        table = read(path)
        is_without = table.provenance.peaks is None
        found = review_table(table, h200_peaks if is_without else None)
        assert [doubt for doubt in review(found) if doubt.level is Level.WRONG] == [], path.name
        assert found.peaks is not None, path.name
        assert all(one.work is not None for one in found.rows), path.name
