"""The review of what ships: tables, and results of compare and bench."""

from __future__ import annotations

from pathlib import Path

from warmup.diagnostics.review.documents import review_file
from warmup.diagnostics.review.measurement import Level
from warmup.diagnostics.review.rules import review

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "benchmarks" / "results"
TABLES = sorted((ROOT / "tables").rglob("*.json"))
REVIEWED = sorted(path for stem in ("compare", "bench") for path in RESULTS.glob(f"{stem}-*.json"))
PEAKS = RESULTS / "bench-mm-h200.json"
# Rates of long sums, beyond peaks that were measured with square products only, in a short run
# (docs/explanation/review.md).
BEYOND_SQUARE_PEAKS = {"compare-products-plain-2-h200.json": 1.02}


def test_no_number_of_a_shipped_table_is_probably_wrong() -> None:
    """Held against the peaks of its kind of GPU, of an H200 those of a run that measured more.

    What is to look at is explained in the docs.
    """
    h200_peaks = review_file(PEAKS).peaks
    for path in TABLES:
        found = review_file(path, h200_peaks if path.parent.name == "nvidia-h200" else None)
        wrong = [doubt for doubt in review(found) if doubt.level is Level.WRONG]
        assert wrong == [], path.name
        assert found.peaks is not None, path.name
        assert all(one.work is not None for one in found.measurements), path.name


def test_no_number_of_a_shipped_result_is_probably_wrong() -> None:
    """But for one file, whose peaks were measured low, by at most the stated share."""
    assert REVIEWED
    for path in REVIEWED:
        doubts = [doubt for doubt in review(review_file(path)) if doubt.level is Level.WRONG]
        if path.name in BEYOND_SQUARE_PEAKS:
            most = BEYOND_SQUARE_PEAKS[path.name]
            assert doubts, path.name
            assert all(1 < doubt.weight < most for doubt in doubts), path.name
        else:
            assert doubts == [], path.name
