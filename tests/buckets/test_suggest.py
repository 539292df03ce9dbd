"""Buckets for observed sizes: no other buckets of the same number add less padded work."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmup
from warmup.core.errors import SettingsError
from warmup.diagnostics.suggest import MAX_SUGGESTED, Cost, suggest

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
