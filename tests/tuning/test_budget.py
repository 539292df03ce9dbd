"""Budgets for wider searches: how they are written, and for which problems they are spent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sample_tables import make_key, make_row, make_table

from warmup.core.buckets import Bucket
from warmup.core.errors import SettingsError
from warmup.core.method import Search
from warmup.core.rows import Row
from warmup.table.schema import Table
from warmup.tuning.progress import Progress, SearchBudget, choose_keys, parse_budget, spend_budget
from warmup.tuning.report import BucketResult, CheckedOutput, Observer

PAD = "pad mm m=1 n=5 k=5 f16 a=row b=col free=ab"


def test_a_search_budget_is_parsed() -> None:
    """Seconds, minutes or hours; without a budget the search is for every problem."""
    for search, budget, budgeted in (
        ("default", None, SearchBudget(Search.DEFAULT)),
        ("wide", None, SearchBudget(Search.WIDE)),
        ("wide", "20m", SearchBudget(Search.WIDE, 1200.0)),
        ("exhaustive", "1.5h", SearchBudget(Search.EXHAUSTIVE, 5400.0)),
        ("wide", "90", SearchBudget(Search.WIDE, 90.0)),
        ("wide", 12.5, SearchBudget(Search.WIDE, 12.5)),
    ):
        assert parse_budget(search, budget) == budgeted


def test_other_forms_are_refused() -> None:
    for search, budget, words in (
        ("narrow", None, "--search 'narrow' is unknown; use one of default, wide, "),
        ("imported", None, "--search 'imported' is unknown"),
        ("default", "20m", "--budget 20m has nothing to be spent on"),
        ("wide", "20 minutes", "'20 minutes' is no time; write 90s, 20m or 2h"),
        ("wide", "-1", "'-1' is no time"),
        ("wide", -1.0, "-1.0 is no time"),
        ("wide", float("nan"), "nan is no time"),
        ("wide", float("inf"), "inf is no time"),
    ):
        with pytest.raises(SettingsError) as caught:
            parse_budget(search, budget)
        assert words in str(caught.value), (search, budget, words)


def _with(row: Row, **changes: object) -> Row:
    return replace(row, evidence=replace(row.evidence, **changes))  # type: ignore[arg-type]


def _result(bucket: str, *keys: str) -> BucketResult:
    return BucketResult(
        bucket=Bucket((("m", int(bucket)),)),
        keys=keys,
        tuned=len(keys),
        judgement=CheckedOutput(error=0.0, limit=1.0),
        seconds=1.0,
    )


def test_problems_that_take_longest_and_are_furthest_from_the_peaks_come_first() -> None:
    """By the time that a kernel at the peaks would save; a bare time counts where there is one."""
    short, long, near, fused = (make_key(m) for m in (1, 2, 3, 4))
    rows = {
        short: _with(make_row(time_us=10.0), peak_share=0.0),
        long: _with(make_row(time_us=100.0), peak_share=0.5),
        near: _with(make_row(time_us=100.0), peak_share=0.99),
        fused: _with(make_row(time_us=500.0), peak_share=0.0, bare_us=20.0),
    }
    results = [_result("1", short, near), _result("2", fused, long)]
    assert choose_keys(results, rows, Search.WIDE, 9) == (long, fused, short, near)


def test_only_problems_that_were_searched_less_far_are_chosen() -> None:
    """A wide row is chosen for an exhaustive search; other kinds of rows never are."""
    wide, default = make_key(1), make_key(2)
    rows = {wide: _with(make_row(), search=Search.WIDE), default: make_row(), PAD: make_row()}
    results = [_result("1", wide, default, PAD)]
    assert choose_keys(results, rows, Search.WIDE, 9) == (default,)
    assert choose_keys(results, rows, Search.EXHAUSTIVE, 9) == (wide, default)


def test_no_more_is_chosen_than_there_is_time_for() -> None:
    """As many as are likely to fit, rounded down; none when the budget is overdrawn."""
    rows = {make_key(m): make_row(time_us=10.0 + m) for m in range(1, 6)}
    results = [_result("1", *rows)]
    assert [len(choose_keys(results, rows, Search.WIDE, most)) for most in (2.9, 0.9, -3)] == [
        2,
        0,
        0,
    ]


@dataclass
class _Runner:
    """A progress over *rows*, and the buckets that are run again: name, chosen keys and search."""

    progress: Progress
    ran: list[tuple[str, frozenset[str] | None, Search]] = field(default_factory=list)

    @classmethod
    def over(cls, table: Table) -> _Runner:
        return cls(
            Progress(
                path=Path("unwritten.json"),
                table=table,
                replaces=False,
                observer=Observer(),
                can_search=True,
                given_up={},
                measured_peaks=lambda: None,
            )
        )

    def __call__(self, before: BucketResult, _number: int, _total: int) -> BucketResult:
        revisit = self.progress.revisit
        keys = tuple(sorted(revisit.chosen or ()))
        assert all(map(self.progress.must_retune, keys))
        result = replace(before, keys=keys, tuned=len(keys), seconds=2.0)
        self.ran.append((result.name, revisit.chosen, revisit.search))
        return result


def test_the_bucket_with_the_best_problem_is_compiled_first() -> None:
    """Each with its own chosen keys; the seconds of both runs are added."""
    small, large = make_key(1), make_key(2)
    rows = {small: make_row(time_us=10.0), large: make_row(time_us=100.0)}
    runner = _Runner.over(make_table(rows))
    results = (_result("1", small), _result("2", large))
    found = spend_budget(
        runner.progress, runner, results, SearchBudget(Search.WIDE, 3600.0), time.monotonic()
    )
    assert [(name, chosen) for name, chosen, _ in runner.ran] == [
        ("m=2", frozenset({large})),
        ("m=1", frozenset({small})),
    ]
    assert {search for _, _, search in runner.ran} == {Search.WIDE}
    assert [(result.tuned, result.seconds) for result in found] == [(2, 3.0), (2, 3.0)]


def test_a_bucket_is_compiled_again_as_it_was() -> None:
    """Its runs with unpadded and padded weights are two results, each with keys of its own."""
    as_is, padded = make_key(1), make_key(1, n=1288)
    runner = _Runner.over(
        make_table({as_is: make_row(time_us=10.0), padded: make_row(time_us=20.0)})
    )
    results = (_result("1", as_is), replace(_result("1", padded), weights_padded=True))
    found = spend_budget(
        runner.progress, runner, results, SearchBudget(Search.WIDE, 3600.0), time.monotonic()
    )
    assert [(name, chosen) for name, chosen, _ in runner.ran] == [
        ("m=1, weights padded", frozenset({padded})),
        ("m=1", frozenset({as_is})),
    ]
    assert [(result.keys, result.weights_padded) for result in found] == [
        ((as_is,), False),
        ((padded,), True),
    ]


def test_a_budget_that_is_used_up_searches_nothing() -> None:
    """The rows of the default search stand, and so do the results."""
    runner = _Runner.over(make_table({make_key(1): make_row()}))
    results = (_result("1", make_key(1)),)
    started, budget = time.monotonic() - 10, SearchBudget(Search.WIDE, 5.0)
    assert spend_budget(runner.progress, runner, results, budget, started) == results
    assert runner.ran == []
