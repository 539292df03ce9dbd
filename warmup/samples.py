"""Repeated measurements of one thing, and what they say. Floor 0: stdlib only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_QUARTERS: Final = 4
_Z95: Final = 1.959964  # two-sided 95 % of a normal distribution
_FEWEST: Final = 6  # below that no two order statistics hold the median with 95 %


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of one thing in microseconds, in the order they were taken; at least one."""

    times_us: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median time in microseconds."""
        return statistics.median(self.times_us)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a share of the median; 0 below two samples."""
        if len(self.times_us) < 2 or not self.median:  # noqa: PLR2004  a spread takes two
            return 0.0
        low, _, high = statistics.quantiles(self.times_us, n=_QUARTERS, method="inclusive")
        return (high - low) / self.median

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, from order statistics; assumes no shape.

        Ranks from the normal approximation of the binomial (Conover, Practical Nonparametric
        Statistics, section 3.2). Below six samples it is the whole range.
        """
        return interval_of(self.times_us)

    def __add__(self, other: Samples) -> Samples:
        return Samples((*self.times_us, *other.times_us))


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of *values*, of which there is one."""
    ordered, count = sorted(values), len(values)
    if count < _FEWEST:
        return ordered[0], ordered[-1]
    half = _Z95 * math.sqrt(count) / 2
    low = max(math.floor(count / 2 - half), 0)
    high = min(math.ceil(count / 2 + half), count - 1)
    return ordered[low], ordered[high]


def geomean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of *ratios*, all above zero, of which there is one."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
