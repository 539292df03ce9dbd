"""`Report`: when the counts of a table are clean, and what its line says about them."""

from __future__ import annotations

from dataclasses import replace

from warmup.serving.handle import Report

CLEAN = Report(
    digest="0" * 64,
    hits={"k": 1},
    misses={},
    miss_reasons={},
    uncovered={},
    tuned=0,
    from_cache=1,
    cached_decisions=2,
    cached_misses=0,
    foreign={},
    unused=("r",),
)


def test_answered_decisions_are_clean() -> None:
    """Graphs from cache and unused rows are no fault."""
    assert CLEAN.is_clean


def test_whatever_no_row_answered_is_not_clean() -> None:
    for changes in (
        {"misses": {"k": 1}},
        {"cached_misses": 1},
        {"uncovered": {"conv": 1}},
        {"foreign": {"none": 1}},
        {"hits": {}, "cached_decisions": 0},
    ):
        assert not replace(CLEAN, **changes).is_clean


def test_the_line_says_what_to_do_about_misses() -> None:
    """For each reason: the commonest is a model that is compiled without dynamic=False."""
    missed = replace(CLEAN, misses={"k": 12}, miss_reasons={"dynamic_dim": 12}, advised=("x: do",))
    assert "12 misses (dynamic_dim 12)" in str(missed)
    assert str(missed).endswith("[x: do]")


def test_a_process_that_asked_what_no_row_kind_decides_is_not_silent() -> None:
    """A selection was asked; a measurement of another feature is no question."""
    for site, is_silent in (("select:qlinear_unary", False), ("triton.autotune", True)):
        report = replace(CLEAN, hits={}, cached_decisions=0, uncovered={site: 1})
        assert report.is_silent is is_silent, site
        assert ("SILENT" in str(report)) is is_silent, site
