"""`TimeRanges`: which of one thread's ranges is around a time."""

from __future__ import annotations

import bisect


class TimeRanges:
    """Ranges of one thread, which of them is around a time; the inner one where they nest."""

    def __init__(self, ranges: list[tuple[float, float, str]]) -> None:
        self._ranges = sorted(ranges)
        self._begins = [begin for begin, _, _ in self._ranges]

    def index_at(self, time: float) -> int | None:
        """Return the index of the innermost range around *time*, None where there is none."""
        at = bisect.bisect_right(self._begins, time) - 1
        for index in range(at, max(at - 8, -1), -1):
            if time < self._ranges[index][1]:
                return index
        return None

    def name(self, index: int) -> str:
        """Return the name of the range *index*."""
        return self._ranges[index][2]
