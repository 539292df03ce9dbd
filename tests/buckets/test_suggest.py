"""Buckets for observed sizes: no other buckets of the same number add less padded work."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmup
from warmup.core.errors import SettingsError
from warmup.diagnostics.suggest import MAX_SIZES, MAX_SUGGESTED, Cost, suggest

HISTOGRAMS = st.dictionaries(st.integers(1, 14), st.integers(1, 9), min_size=1, max_size=9)
COSTS = st.sampled_from(list(Cost))


def padded_work(counts: Mapping[int, int], buckets: Iterable[int], cost: Cost) -> int:
    """Return the work of all requests, each in the smallest of *buckets* that holds it."""
    chosen = tuple(buckets)
    return sum(
        count * cost.of(min(bucket for bucket in chosen if bucket >= size))
        for size, count in counts.items()
    )


@given(HISTOGRAMS, st.integers(1, 5), COSTS)
def test_no_other_buckets_pad_less(counts: dict[int, int], most: int, cost: Cost) -> None:
    """Each pick is the best of all sets of integers of its size, observed or not."""
    largest = max(counts)
    expected = [
        min(
            padded_work(counts, (*others, largest), cost)
            for others in itertools.combinations(range(1, largest), number - 1)
        )
        for number in range(1, min(most, len(counts)) + 1)
    ]
    found = suggest(counts, max_buckets=most, cost=cost)
    assert [pick.work for pick in found.curve] == expected


@given(HISTOGRAMS, st.integers(1, 4), st.integers(2, 5), COSTS)
def test_no_other_multiples_pad_less(
    counts: dict[int, int], most: int, multiple: int, cost: Cost
) -> None:
    last = -(-max(counts) // multiple) * multiple
    found = suggest(counts, max_buckets=most, multiple=multiple, cost=cost)
    expected = [
        min(
            padded_work(counts, (*others, last), cost)
            for others in itertools.combinations(range(multiple, last, multiple), number)
        )
        for number in range(len(found.curve))
    ]
    assert [pick.work for pick in found.curve] == expected
    assert len(found.curve) == min(most, len({-(-size // multiple) for size in counts}))


@given(
    st.dictionaries(st.integers(1, 2**31 - 1), st.integers(1, 10**12), min_size=1, max_size=40),
    st.integers(1, 8),
    COSTS,
)
def test_the_work_is_that_of_the_buckets(counts: dict[int, int], most: int, cost: Cost) -> None:
    found = suggest(counts, max_buckets=most, cost=cost)
    works = [pick.work for pick in found.curve]
    assert works == [padded_work(counts, pick.sizes, cost) for pick in found.curve]
    assert works == sorted(set(works), reverse=True)


@given(HISTOGRAMS, st.integers(1, 12))
def test_the_curve_counts_buckets(counts: dict[int, int], most: int) -> None:
    """The curve has picks of 1, 2, 3 ... ascending observed sizes, the last of them the largest."""
    found = suggest(counts, max_buckets=most)
    assert [len(pick.sizes) for pick in found.curve] == [*range(1, min(most, len(counts)) + 1)]
    assert all(pick.sizes == tuple(sorted(set(pick.sizes) & counts.keys())) for pick in found.curve)
    assert {pick.sizes[-1] for pick in found.curve} == {max(counts)}


def slow_works(counts: Mapping[int, int], most: int) -> list[int]:
    """Return the best work of 1 ... *most* buckets by the recurrence itself, in O(n * n * most)."""
    sizes = sorted(counts)
    total = [0, *itertools.accumulate(counts[size] for size in sizes)]
    best = [size * total[j + 1] for j, size in enumerate(sizes)]
    works = [best[-1]]
    for k in range(1, most):
        best = [
            min(
                (best[i - 1] + size * (total[j + 1] - total[i]) for i in range(k, j + 1)), default=0
            )
            for j, size in enumerate(sizes)
        ]
        works.append(best[-1])
    return works


def test_the_envelope_finds_what_the_recurrence_does() -> None:
    """On sizes near each other and far apart the fast search is as good as the plain recurrence."""
    for largest in (60, 600, 60_000):
        chance = random.Random(largest)  # noqa: S311  a fixed seed
        histograms = [
            {
                size: int(chance.paretovariate(0.7))
                for size in chance.sample(range(1, largest + 1), 50)
            }
            for _ in range(60)
        ]
        found = [[pick.work for pick in suggest(each, max_buckets=6).curve] for each in histograms]
        assert found == [slow_works(each, 6) for each in histograms], largest


def test_the_limits_can_be_asked_for() -> None:
    """With the largest allowed numbers of sizes or of buckets the pick has all the buckets."""
    for observed, most in ((MAX_SIZES, 4), (2000, MAX_SUGGESTED)):
        counts = {3 * number + 1: 1 + number % 7 for number in range(observed)}
        found = suggest(counts, max_buckets=most)
        assert found.best.work == padded_total(counts, found.best.sizes), (observed, most)
        assert len(found.best.sizes) == most, (observed, most)


def padded_total(counts: Mapping[int, int], buckets: tuple[int, ...]) -> int:
    """Return linear padded work in one pass over ascending sizes."""
    waiting = iter(buckets)
    bucket, work = next(waiting), 0
    for size in sorted(counts):
        while bucket < size:
            bucket = next(waiting)
        work += counts[size] * bucket
    return work


def test_enough_buckets_pad_nothing() -> None:
    found = suggest({16: 5, 560: 1}, max_buckets=8)
    assert (found.best.sizes, found.padded(found.best)) == ((16, 560), 1.0)


def test_a_multiple_pads_what_it_rounds() -> None:
    """The work without padding is that of the requested sizes."""
    found = suggest({60: 1, 100: 1}, max_buckets=8, multiple=64)
    assert (found.best.sizes, found.work, found.best.work) == ((64, 128), 160, 192)


def test_the_histogram_is_summed_up() -> None:
    found = suggest({16: 5, 560: 2, 24: 1}, max_buckets=1)
    assert (found.requests, found.observed, found.smallest, found.largest) == (8, 3, 16, 560)


def test_a_file_is_as_good_as_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text("16,5\n560,2\n24\n")
    of_mapping = warmup.suggest({16: 5, 560: 2, 24: 1}, max_buckets=2)
    assert warmup.suggest(path, max_buckets=2) == of_mapping


def test_arguments_out_of_bounds_are_named() -> None:
    for arguments, said in (
        ({"max_buckets": 0}, "0 buckets cannot be suggested"),
        ({"max_buckets": MAX_SUGGESTED + 1}, f"{MAX_SUGGESTED + 1} buckets cannot be suggested"),
        ({"max_buckets": 2, "multiple": 0}, "0 is no multiple"),
        ({"max_buckets": 2, "multiple": 2**40}, f"{2**40} is no multiple"),
        ({"max_buckets": 2, "multiple": 2**31 - 2}, "the size 2147483647 rounded up"),
        ({"max_buckets": 2, "cost": "cubic"}, "the cost 'cubic' is unknown"),
    ):
        with pytest.raises(SettingsError, match=said):
            suggest({2**31 - 1: 1}, **arguments)  # type: ignore[arg-type]
