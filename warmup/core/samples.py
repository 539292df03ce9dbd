"""`Samples`: repeated times of one call, with their median, spread and confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# The widest interval of a control, as a share of its median, beside which ratios mean something.
WIDEST_CONTROL: Final = 0.2
_QUARTERS: Final = 4
_TAIL_SHARE: Final = 0.025  # of a two-sided interval of 95 %


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of one call in microseconds, at least one, in the order in which they were taken."""

    times_us: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median time in microseconds."""
        return statistics.median(self.times_us)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a share of the median; 0 below two samples."""
        if len(self.times_us) < 2 or not self.median:  # noqa: PLR2004  a single time has no spread
            return 0.0
        low, _, high = statistics.quantiles(self.times_us, n=_QUARTERS, method="inclusive")
        return (high - low) / self.median

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, whatever the distribution of the times.

        Its ends are order statistics, with ranks from the binomial distribution (Conover, Practical
        Nonparametric Statistics, section 3.2). Below six samples it is the whole range, whose
        confidence is then below 95 %.
        """
        return interval_of(self.times_us)

    @property
    def width(self) -> float:
        """The width of the interval, as a share of the median; 0 where the median is 0."""
        low, high = self.interval
        return (high - low) / self.median if self.median else 0.0

    def __add__(self, other: Samples) -> Samples:
        return Samples((*self.times_us, *other.times_us))


def busy_sentence(control: str, samples: Samples) -> str | None:
    """Return why *samples* of the control are no basis of a ratio; None where they are.

    The times of a control, the call that the others are compared with, say how far the machine can
    be believed: nothing but the machine changes between them.
    """
    if samples.width <= WIDEST_CONTROL:
        return None
    return (
        f"no verdict: this machine is too busy: the 95 % interval of {control} is "
        f"{samples.width:.0%} of its median wide (at most {WIDEST_CONTROL:.0%})"
    )


def first_busy_sentence(controls: Iterable[tuple[str, Samples]]) -> str | None:
    """Return the `busy_sentence` of the first of *controls* that has a sentence, else None."""
    sentences = (busy_sentence(control, samples) for control, samples in controls)
    return next(filter(None, sentences), None)


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of *values*, at least one value."""
    ordered, count = sorted(values), len(values)
    outside, below = 0.0, 0
    while (outside := outside + math.comb(count, below) / 2**count) <= _TAIL_SHARE:
        below += 1
    low = max(below - 1, 0)
    return ordered[low], ordered[count - 1 - low]


def ratios_by_round(base: Samples, own: Samples) -> list[float]:
    """Return the time of *base* over that of *own* in each round; both have as many times.

    The two times of a round are taken shortly after each other, so that a drift cancels.
    """
    return [a / b for a, b in zip(base.times_us, own.times_us, strict=True)]


def geomean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of *ratios*, at least one, all above zero."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
