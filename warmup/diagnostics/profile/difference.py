"""`differences_of`: two profiles, iteration by iteration: which kernels got slower, and how much.

A decision is compared by its key, whichever kernel serves it, and a kernel without a key by its
name. Times are the sum of an iteration, so that traces of different lengths compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.samples import Samples
from warmup.diagnostics.profile.alignment import unnumbered
from warmup.diagnostics.profile.profile import KernelLine, Profile
from warmup.diagnostics.profile.row_match import matmul_of

_FEWEST: Final = 2  # iterations that have an interval


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDifference:
    """One decision or kernel in two traces: microseconds of an iteration, the median of each.

    None where a trace does not have it. ``interval`` is of the ratio, from the 95 % intervals of
    the two medians; None where a trace has a single iteration.
    """

    bucket: str | None
    subject: str
    before: tuple[str, ...]  # the kernels' names
    after: tuple[str, ...]
    before_us: float | None
    after_us: float | None
    interval: tuple[float, float] | None = None

    @property
    def added_us(self) -> float:
        """By how much an iteration got slower; negative where it got faster."""
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def ratio(self) -> float | None:
        """The time after over the time before, None where one of them is missing."""
        return self.after_us / self.before_us if self.before_us and self.after_us else None

    @property
    def is_certain(self) -> bool:
        """Whether the interval leaves out that both are equally fast."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]


def differences_of(before: Profile, after: Profile) -> tuple[KernelDifference, ...]:
    """Return the differences of two profiles, the largest change of time first.

    For each bucket that both have there is a first difference, of all its kernels together.
    """
    found = []
    buckets = {bucket.bucket: bucket for bucket in after.buckets}
    for own in before.buckets:
        other = buckets.pop(own.bucket, None)
        if other is None:
            continue
        mine, theirs = _by_subject(own.lines), _by_subject(other.lines)
        subjects = dict.fromkeys((*mine, *theirs))
        pairs = [
            _difference(own.bucket, subject, mine.get(subject, ()), theirs.get(subject, ()))
            for subject in subjects
        ]
        found.append(_difference(own.bucket, "", own.lines, other.lines))
        found += sorted(pairs, key=lambda each: -abs(each.added_us))
    return tuple(found)


def _by_subject(lines: Sequence[KernelLine]) -> dict[str, list[KernelLine]]:
    found: dict[str, list[KernelLine]] = defaultdict(list)
    for line in lines:
        found[_subject(line)].append(line)
    return found


def _subject(line: KernelLine) -> str:
    return matmul_of(line.keys[0]) if line.keys else unnumbered(line.name)


def _difference(
    bucket: str | None, subject: str, before: Sequence[KernelLine], after: Sequence[KernelLine]
) -> KernelDifference:
    first, second = _samples(before), _samples(after)
    interval = None
    if first is not None and second is not None and _have_intervals(first, second):
        (low_a, high_a), (low_b, high_b) = first.interval, second.interval
        interval = (low_b / high_a, high_b / low_a) if high_a and low_a else None
    return KernelDifference(
        bucket=bucket,
        subject=subject,
        before=tuple(dict.fromkeys(line.name for line in before)),
        after=tuple(dict.fromkeys(line.name for line in after)),
        before_us=None if first is None else first.median,
        after_us=None if second is None else second.median,
        interval=interval,
    )


def _have_intervals(*samples: Samples) -> bool:
    return all(len(each.times_us) >= _FEWEST for each in samples)


def _samples(lines: Sequence[KernelLine]) -> Samples | None:
    """Return the time of each iteration, all *lines* together."""
    if not lines:
        return None
    longest = max(len(line.per_iteration) for line in lines)
    sums = [0.0] * longest
    for line in lines:
        for number, us in enumerate(line.per_iteration):
            sums[number] += us
    return Samples(tuple(sums))
