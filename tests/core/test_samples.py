"""Repeated measurements: the median, how wide they spread, and how sure the median is."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmup.core.trial import Samples, geomean, interval_of

TIMES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)
COUNTS = [*range(6, 40), 100]


def interval_of_ranks(count: int) -> tuple[int, int]:
    """Return which of *count* values in order, counted from zero, bound the interval."""
    low, high = interval_of(range(count))
    return int(low), int(high)


def coverage(count: int, low: int, high: int) -> float:
    """Return how probable it is that the median is between two order statistics."""
    return sum(math.comb(count, below) for below in range(low + 1, high + 1)) / 2**count


def test_the_median_is_the_middle() -> None:
    """For an even count it is the mean of the two middle times; the order does not matter."""
    for times, median in (((3.0,), 3.0), ((9.0, 1.0, 4.0), 4.0), ((1.0, 2.0), 1.5)):
        assert Samples(times).median == median


def test_the_spread_is_the_distance_between_the_quartiles() -> None:
    """The quartiles of 1 to 5 are 2 and 4, and the median is 3."""
    assert Samples((1.0, 5.0, 3.0, 2.0, 4.0)).spread == pytest.approx(2 / 3)
    # The largest of five times is no quartile.
    assert Samples((1.0, 2.0, 3.0, 4.0, 500.0)).spread == Samples((1.0, 2.0, 3.0, 4.0, 5.0)).spread
    # One time, times of which most are zero, and equal times have no spread.
    for times in ((7.0,), (0.0, 0.0, 5.0), (2.0, 2.0, 2.0)):
        assert Samples(times).spread == 0.0


@example([0.01, 0.01, 0.01, 1e6], 0.3)  # spread 2.5e7, so its last bit is 3.7e-9
@given(TIMES, st.floats(0.1, 10))
def test_the_spread_has_no_unit(times: list[float], factor: float) -> None:
    """Times in another unit have the same spread, up to rounding: relative where it is large."""
    scaled = Samples(tuple(time * factor for time in times))
    assert scaled.spread == pytest.approx(Samples(tuple(times)).spread, rel=1e-12, abs=1e-12)


@given(TIMES.filter(lambda times: len(times) < 6))
def test_below_six_the_interval_is_the_range(times: list[float]) -> None:
    """With fewer than six times no narrower interval holds the median with 95 %."""
    assert Samples(tuple(times)).interval == (min(times), max(times))


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


def test_more_samples_make_the_interval_narrower() -> None:
    """Of the same distribution, four times the samples leave less than two thirds of the width."""
    narrow, wide = (
        (high - low) / (count - 1)
        for count in (400, 100)
        for low, high in [interval_of_ranks(count)]
    )
    assert narrow < wide * 2 / 3


def test_samples_add_up_in_the_order_taken() -> None:
    assert (Samples((3.0, 1.0)) + Samples((2.0,))).times_us == (3.0, 1.0, 2.0)


def test_a_speedup_and_its_inverse_cancel() -> None:
    """The geometric mean of 2 and 1/2 is 1; the arithmetic mean would be 1.25."""
    assert geomean([2.0, 0.5]) == pytest.approx(1.0)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20))
def test_a_geometric_mean_is_between_the_ratios(ratios: list[float]) -> None:
    assert min(ratios) * (1 - 1e-9) <= geomean(ratios) <= max(ratios) * (1 + 1e-9)
