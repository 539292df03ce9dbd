"""`review`: each time of a table held against what the device can do, and against its neighbours.

A call that is faster than the peaks allow did not do its work, and a call far below them was
disturbed or is a bad choice; the time that a call takes whatever it does is left out of the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from warmup.core.roofline import Peaks, Work, share_of_peak
from warmup.core.rows import L2, Evidence, Family, Flag, Row, Scope, ranked
from warmup.keys.registry import ingredients_of, product_of, work_of
from warmup.table.schema import Table

GPU_LATENCY_US: Final = 5.0  # of an empty kernel, from its launch to its end
CPU_LATENCY_US: Final = 20.0  # of an operator that wakes the threads of its pool
LOW_SHARE: Final = 0.1
_HIGH_SHARE: Final = 0.9
_LOWEST_SHARE: Final = 0.01
_MOST_SPREAD: Final = 0.5
_FALL: Final = 0.1  # between the times of two sizes of one call
_CONTRADICTION: Final = 1.25  # between two times of one call
_REPEATED: Final = 0.02  # beyond a peak, which is a measurement too
_LIBRARY: Final = "the library's kernel"
_UNPADDED: Final = "as_is"
_REMARKS: Final = {
    Flag.UNSTABLE: "the times varied too much; the library's kernel was kept",
    Flag.OVER_PEAK: "faster than the measured peak, in a second measurement too",
    Flag.FAR_BELOW_PEAK: "far below the measured peak when it was built",
}


class Level(StrEnum):
    """How far a number is doubted: measure it again, or look at it."""

    WRONG = "wrong"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A row of a table, and what its call does at least; None where that is not known."""

    key: str
    row: Row
    work: Work | None

    @property
    def evidence(self) -> Evidence:
        return self.row.evidence

    @property
    def work_us(self) -> float:
        """The time of the part of the call that does the work."""
        found = self.evidence
        return (found.bare_us if found.scope is Scope.FUSED else None) or found.time_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """All rows of a table, and the peaks that they are held against, if they are known.

    ``is_cold``: calls read their operands from memory. ``latency_us`` is of a call that does
    nothing.
    """

    rows: tuple[TimedRow, ...]
    peaks: Peaks | None
    is_cold: bool
    latency_us: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason not to believe the time of ``subject``; those with more ``weight`` come first."""

    level: Level
    subject: str
    reason: str
    weight: float


def review_table(table: Table, peaks: Peaks | None = None) -> Reviewed:
    """Return the rows of *table* with *peaks*, or else those of the table, if it has any."""
    is_cpu = table.provenance.runtime.device.type == "cpu"
    return Reviewed(
        rows=tuple(TimedRow(key, row, work_of(key)) for key, row in table.rows.items()),
        peaks=peaks or table.provenance.peaks,
        is_cold=table.policy.timing.l2 is L2.COLD,
        latency_us=CPU_LATENCY_US if is_cpu else GPU_LATENCY_US,
    )


def review(reviewed: Reviewed) -> tuple[Doubt, ...]:
    """Return every doubt of *reviewed*: probably wrong numbers first, the largest doubt first."""
    doubts = [doubt for one in reviewed.rows for doubt in _doubts_of_row(one, reviewed)]
    doubts += [*_falls(reviewed.rows), *_contradictions(reviewed.rows)]
    levels = list(Level)
    return tuple(sorted(doubts, key=lambda one: (levels.index(one.level), -one.weight)))


def share_at_least(reviewed: Reviewed, one: TimedRow, *, scaled: bool = True) -> float | None:
    """Return the least share of the peaks that *one* reached; None where that is not known.

    The compute peak is that at the clock of the measurement, or as it was measured unless *scaled*.
    Bytes count with a cold L2 only, since a cache is faster than the memory.
    """
    work, peaks = one.work, reviewed.peaks
    if work is None or peaks is None:
        return None
    at_clock = _at_clock(peaks, work.dtype, one.evidence.clock_mhz) if scaled else peaks
    moved = work.moved if reviewed.is_cold else 0
    return share_of_peak(at_clock, work.dtype, work.flops, moved, one.work_us) or None


def _share_at_most(reviewed: Reviewed, one: TimedRow) -> float | None:
    """Return the largest share of the peaks that *one* can have reached; None where not known."""
    # Of a launch key only bounds of the bytes are known. The latency of a call counts as time at
    # the peak, and so do bytes that may have come from a cache.
    work, peaks = one.work, reviewed.peaks
    if work is None or peaks is None:
        return None
    at_clock, moved = _at_clock(peaks, work.dtype, one.evidence.clock_mhz), work.most_moved
    share = share_of_peak(at_clock, work.dtype, work.flops, moved or work.moved, one.work_us)
    return share + reviewed.latency_us / one.work_us


def _at_clock(peaks: Peaks, dtype: str, clock_mhz: int | None) -> Peaks:
    """Return *peaks* with the rate of *dtype* at that clock; as measured where none is known."""
    of_peak, rate = peaks.clocks.get(dtype), peaks.tflops.get(dtype)
    if not clock_mhz or not of_peak or rate is None:
        return peaks
    return replace(peaks, tflops={dtype: rate * (clock_mhz / of_peak)})


def _doubts_of_row(one: TimedRow, reviewed: Reviewed) -> Iterator[Doubt]:
    found = one.evidence
    least, most = share_at_least(reviewed, one), _share_at_most(reviewed, one)
    clock = "" if found.clock_mhz is None else f" at {found.clock_mhz} MHz"
    if least is not None and least > _HIGH_SHARE:
        level = Level.WRONG if _is_beyond_peak(reviewed, one, least) else Level.LOOK
        yield Doubt(level, one.key, f"{least:.0%} of the measured peak{clock}", least)
    elif most is not None and most < LOW_SHARE:
        level = Level.WRONG if most < _LOWEST_SHARE else Level.LOOK
        reason = f"{most:.1%} of the measured peak: {_us(one.work_us)}{clock}"
        yield Doubt(level, one.key, reason, LOW_SHARE / most)
    if found.spread is not None and found.spread > _MOST_SPREAD:
        reason = f"the middle half of its times is {found.spread:.0%} of the median wide"
        yield Doubt(Level.LOOK, one.key, reason, found.spread)
    band = max(found.band or 0, *(ratio - 1 for _, ratio in found.along if ratio), 0)
    library_us = found.library_us
    if library_us is not None and found.time_us > library_us * (1 + band):
        reason = f"{_us(found.time_us)}, and {_LIBRARY} takes {_us(library_us)}"
        yield Doubt(Level.LOOK, one.key, reason, found.time_us / library_us)
    for flag in found.flags:
        if flag in _REMARKS:
            yield Doubt(Level.LOOK, one.key, _REMARKS[flag], 1.0)


def _is_beyond_peak(reviewed: Reviewed, one: TimedRow, least: float) -> bool:
    """Whether *one* is faster than the peaks, both as they were measured and at its own clock."""
    # *least* is the share of the peaks at its own clock. A clock is read once, beside short runs,
    # and a limit of power moves it within them. So a row at a lower clock than the peak's may be
    # beyond the peak at its clock and still be true: on an H100 at 1560 MHz products reached 117 %
    # of it, and 92 % of the peak as it was measured. A time that a second measurement confirmed may
    # be beyond a peak by as much as two measurements differ: reading 1 GiB for a product with one
    # row takes 1 % less than the copies and reads that make the peak.
    unscaled = share_at_least(reviewed, one, scaled=False)
    most = 1 + _REPEATED if Flag.OVER_PEAK in one.evidence.flags else 1
    return unscaled is not None and min(least, unscaled) > most


def _falls(rows: Sequence[TimedRow]) -> Iterator[Doubt]:
    """Yield times that fall while the size of the same call grows, the largest fall of each."""
    series: dict[str, list[tuple[int, TimedRow]]] = defaultdict(list)
    for one in rows:
        m = ingredients_of(one.key).get("m", "")
        largest = m.rpartition("..")[2]
        if largest:  # a range may have no end
            others = one.key.replace(f" m={m} ", " m=* ", 1)
            series[f"{others} {one.evidence.scope}"].append((int(largest), one))
    for sized in series.values():
        sized.sort(key=lambda each: each[0])
        for place, (size, one) in enumerate(sized):
            slower = [
                (other.evidence.time_us, smaller, other)
                for smaller, other in sized[:place]
                if smaller < size and _is_faster(one.evidence, other.evidence)
            ]
            if slower:
                slow_us, smaller, other = max(slower, key=lambda each: each[0])
                time_us = one.evidence.time_us
                reason = f"the time falls: {_us(slow_us)} at {smaller}, {_us(time_us)} at {size}"
                yield Doubt(Level.LOOK, other.key, reason, slow_us / time_us)


def _is_faster(one: Evidence, other: Evidence) -> bool:
    margin = max(_FALL, ((one.spread or 0) + (other.spread or 0)) / 2)
    return one.time_us < other.time_us * (1 - margin)


def _contradictions(rows: Sequence[TimedRow]) -> Iterator[Doubt]:
    calls: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for one in rows:
        if (call := _call(one.key, one.row)) is not None:
            name, time_us = call
            calls[name].append((time_us, one.key))
    for name, same in calls.items():
        (slow_us, slowest), (fast_us, fastest) = max(same), min(same)
        if slow_us > fast_us * _CONTRADICTION:
            reason = f"{_us(slow_us)} for {name}, which took {_us(fast_us)} for: {fastest}"
            yield Doubt(Level.LOOK, slowest, reason, slow_us / fast_us)


def _call(key: str, row: Row) -> tuple[str, float] | None:
    # For a pad row that is the product as it is, by the library's kernel.
    product, found = product_of(key), row.evidence
    time_us = found.bare_us if found.scope is Scope.FUSED else found.time_us
    is_library = row.winner.family is Family.EXTERN and row.winner.uid.startswith("aten::")
    if row.winner.family is Family.PAD:
        own = {name: own_us for own_us, name in ranked(found.bare_ranking)}
        is_own = found.scope is Scope.BARE  # of a region the times are not those of the product
        time_us, is_library = found.library_us if is_own else own.get(_UNPADDED), True
    if product is None or time_us is None:
        return None
    return f"{product} by {_LIBRARY if is_library else row.winner}", time_us


def _us(time_us: float) -> str:
    return f"{time_us:.4g} us" if time_us < 1000 else f"{time_us:.0f} us"  # noqa: PLR2004  digits
