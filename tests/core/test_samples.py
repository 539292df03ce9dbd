"""Repeated measurements: the median, how wide they spread, and how sure the median is."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.trial import Samples, interval_of

TIMES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)
COUNTS = [*range(6, 40), 100]


def interval_of_ranks(count: int) -> tuple[int, int]:
    """Return which of *count* values in order, counted from zero, bound the interval."""
    low, high = interval_of(range(count))
    return int(low), int(high)


def coverage(count: int, low: int, high: int) -> float:
    """Return how probable it is that the median is between two order statistics."""
    return sum(math.comb(count, below) for below in range(low + 1, high + 1)) / 2**count


def test_the_spread_is_the_distance_between_the_quartiles() -> None:
    """The quartiles of 1 to 5 are 2 and 4, and the median is 3."""
    assert Samples((1.0, 5.0, 3.0, 2.0, 4.0)).spread == pytest.approx(2 / 3)
    # The largest of five times is no quartile.
    assert Samples((1.0, 2.0, 3.0, 4.0, 500.0)).spread == Samples((1.0, 2.0, 3.0, 4.0, 5.0)).spread
    # One time, times of which most are zero, and equal times have no spread.
    for times in ((7.0,), (0.0, 0.0, 5.0), (2.0, 2.0, 2.0)):
        assert Samples(times).spread == 0.0


@given(TIMES, st.randoms())
def test_the_interval_holds_the_median_in_any_order(times: list[float], random: Random) -> None:
    low, high = Samples(tuple(times)).interval
    assert low <= Samples(tuple(times)).median <= high
    random.shuffle(times)
    assert interval_of(times) == (low, high)


def test_the_interval_has_95_percent_and_no_side() -> None:
    """Whatever the distribution: exact by the binomial, up to what an approximation costs."""
    for count in COUNTS:
        assert coverage(count, *interval_of_ranks(count)) > 0.92
    # As many values are left out above it as below: slow outliers count no more than fast ones.
    bounds = {count: interval_of_ranks(count) for count in COUNTS}
    left_out = {count: (low, count - 1 - high) for count, (low, high) in bounds.items()}
    assert {count: ends for count, ends in left_out.items() if ends[0] != ends[1]} == {}
