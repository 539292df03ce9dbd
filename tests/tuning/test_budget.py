"""Where a budget for wider searches goes, and how it is spelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from warmup.buckets.bucket import Bucket
from warmup.core.errors import SettingsError
from warmup.core.method import Search
from warmup.core.rows import Row, Tuned
from warmup.table import Table
from warmup.tuning.budget import choose, widen
from warmup.tuning.extent import Extent, parse_extent
from warmup.tuning.report import BucketResult

MakeKey = Callable[..., str]
MakeRow = Callable[..., Row]
MakeTable = Callable[..., Table]
PAD = "pad mm m=1 n=5 k=5 f16 a=row b=col free=ab"


@pytest.mark.parametrize(
    ("search", "budget", "extent"),
    [
        ("default", None, Extent(Search.DEFAULT)),
        ("wide", None, Extent(Search.WIDE)),
        ("wide", "20m", Extent(Search.WIDE, 1200.0)),
        ("exhaustive", "1.5h", Extent(Search.EXHAUSTIVE, 5400.0)),
        ("wide", "90", Extent(Search.WIDE, 90.0)),
        ("wide", 12.5, Extent(Search.WIDE, 12.5)),
    ],
)
def test_an_extent_is_spelled(search: str, budget: str | float | None, extent: Extent) -> None:
    """Seconds, minutes or hours; without a budget the search is for every problem."""
    assert parse_extent(search, budget) == extent


@pytest.mark.parametrize(
    ("search", "budget", "words"),
    [
        ("narrow", None, "--search 'narrow' is unknown; use one of default, wide, exhaustive"),
        ("default", "20m", "--budget 20m has nothing to be spent on"),
        ("wide", "20 minutes", "'20 minutes' is no time; write 90s, 20m or 2h"),
        ("wide", "-1", "'-1' is no time"),
        ("wide", -1.0, "-1.0 is no time"),
        ("wide", float("nan"), "nan is no time"),
        ("wide", float("inf"), "inf is no time"),
    ],
)
def test_what_is_no_extent_is_refused(search: str, budget: str | float | None, words: str) -> None:
    """It says what is wrong and what to write."""
    with pytest.raises(SettingsError) as caught:
        parse_extent(search, budget)
    assert words in str(caught.value)


def _with(row: Row, **changes: object) -> Row:
    return replace(row, evidence=replace(row.evidence, **changes))  # type: ignore[arg-type]


def _result(bucket: str, *keys: str) -> BucketResult:
    return BucketResult(
        bucket=Bucket((("m", int(bucket)),)), keys=keys, tuned=len(keys), error=0.0, seconds=1.0
    )


def test_what_takes_longest_and_is_furthest_from_the_peaks_comes_first(
    make_key: MakeKey, make_row: MakeRow
) -> None:
    """By the time that a kernel at the peaks would save; a bare time counts where there is one."""
    short, long, near, fused = (make_key(m) for m in (1, 2, 3, 4))
    rows = {
        short: _with(make_row(time_us=10.0), peak_share=0.0),
        long: _with(make_row(time_us=100.0), peak_share=0.5),
        near: _with(make_row(time_us=100.0), peak_share=0.99),
        fused: _with(make_row(time_us=500.0), peak_share=0.0, bare_us=20.0),
    }
    results = [_result("1", short, near), _result("2", fused, long)]
    assert choose(results, rows, Search.WIDE, 9) == (long, fused, short, near)


def test_only_what_was_searched_less_far_is_chosen(make_key: MakeKey, make_row: MakeRow) -> None:
    """A wide row waits for an exhaustive search; another kind of row for none."""
    wide, default = make_key(1), make_key(2)
    rows = {wide: _with(make_row(), search=Search.WIDE), default: make_row(), PAD: make_row()}
    results = [_result("1", wide, default, PAD)]
    assert choose(results, rows, Search.WIDE, 9) == (default,)
    assert choose(results, rows, Search.EXHAUSTIVE, 9) == (wide, default)


def test_no_more_is_chosen_than_there_is_time_for(make_key: MakeKey, make_row: MakeRow) -> None:
    """As many as are likely to fit, rounded down; none when the budget is overdrawn."""
    rows = {make_key(m): make_row(time_us=10.0 + m) for m in range(1, 6)}
    results = [_result("1", *rows)]
    assert [len(choose(results, rows, Search.WIDE, most)) for most in (2.9, 0.9, -3)] == [2, 0, 0]


@dataclass
class _Build:
    """As much of a build as spends a budget: notes what it is asked to do."""

    table: Table
    tuned: list[Tuned] = field(default_factory=list)
    search: Search = Search.DEFAULT
    chosen: frozenset[str] | None = None
    until: float = 0.0
    ran: list[tuple[str, frozenset[str] | None, Search]] = field(default_factory=list)

    def reopen(self, keys: frozenset[str]) -> None:
        assert keys == self.chosen

    def run_bucket(
        self, bucket: Bucket, _index: int, _total: int, *, weights_padded: bool
    ) -> BucketResult:
        keys = tuple(sorted(self.chosen or ()))
        result = BucketResult(
            bucket=bucket,
            keys=keys,
            tuned=len(keys),
            error=0.0,
            seconds=2.0,
            weights_padded=weights_padded,
        )
        self.ran.append((result.name, self.chosen, self.search))
        return result


def test_the_bucket_with_the_best_problem_is_compiled_first(
    make_key: MakeKey, make_row: MakeRow, make_table: MakeTable
) -> None:
    """Each with its own chosen keys; what it took is added to what it had taken."""
    small, large = make_key(1), make_key(2)
    rows = {small: make_row(time_us=10.0), large: make_row(time_us=100.0)}
    build = _Build(make_table(rows))
    results = (_result("1", small), _result("2", large))
    found = widen(build, results, Search.WIDE, time.monotonic(), 3600.0)  # type: ignore[arg-type]
    assert [(name, chosen) for name, chosen, _ in build.ran] == [
        ("m=2", frozenset({large})),
        ("m=1", frozenset({small})),
    ]
    assert {search for _, _, search in build.ran} == {Search.WIDE}
    assert [(result.tuned, result.seconds) for result in found] == [(2, 3.0), (2, 3.0)]


def test_a_bucket_is_compiled_again_as_it_was(
    make_key: MakeKey, make_row: MakeRow, make_table: MakeTable
) -> None:
    """With its weights as they are and padded it has two results, each with keys of its own."""
    as_is, padded = make_key(1), make_key(1, n=1288)
    build = _Build(make_table({as_is: make_row(time_us=10.0), padded: make_row(time_us=20.0)}))
    results = (_result("1", as_is), replace(_result("1", padded), weights_padded=True))
    found = widen(build, results, Search.WIDE, time.monotonic(), 3600.0)  # type: ignore[arg-type]
    assert [(name, chosen) for name, chosen, _ in build.ran] == [
        ("m=1, weights padded", frozenset({padded})),
        ("m=1", frozenset({as_is})),
    ]
    assert [(result.keys, result.weights_padded) for result in found] == [
        ((as_is,), False),
        ((padded,), True),
    ]


def test_a_budget_that_is_used_up_searches_nothing(
    make_key: MakeKey, make_row: MakeRow, make_table: MakeTable
) -> None:
    """The rows of the default search stand, and so do the results."""
    build = _Build(make_table({make_key(1): make_row()}))
    results = (_result("1", make_key(1)),)
    started = time.monotonic() - 10
    assert widen(build, results, Search.WIDE, started, 5.0) == results  # type: ignore[arg-type]
    assert build.ran == []
