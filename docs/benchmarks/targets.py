"""How sections of the benchmark page tell medians, counts and targets.

A target is judged by the number as it is printed, and "not measured" where there is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NOT_MEASURED = "not measured"


def at_most(ratio: float | None, limit: float) -> str:
    """Return *ratio* in words, and whether it is at most *limit*."""
    return NOT_MEASURED if ratio is None else f"{ratio:.3f}, {verdict(round(ratio, 3) <= limit)}"


def at_least(ratio: float | None, limit: float) -> str:
    """Return *ratio* in words, and whether it is at least *limit*."""
    return NOT_MEASURED if ratio is None else f"{ratio:.3f}, {verdict(round(ratio, 3) >= limit)}"


def none_of(counts: Sequence[int]) -> str:
    """Return the largest of *counts*, one for each start or run, and whether it is 0."""
    return f"{max(counts)}, {verdict(max(counts) == 0)}" if counts else NOT_MEASURED


def verdict(is_reached: bool) -> str:  # noqa: FBT001  the claim itself is what is put in words
    """Return the word for a target that is reached, or is not."""
    return "reached" if is_reached else "missed"


def median_of(values: Sequence[float], digits: int = 1) -> str:
    """Return the median with its bounds, where the values differ; empty without any."""
    if not values:
        return ""
    middle, low, high = (
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def count_of(counts: Sequence[int]) -> str:
    """Return the count of one start, or its bounds where starts differ; empty without any."""
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""
