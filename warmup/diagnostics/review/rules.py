"""`review`: each number held against what the device can do, and against its neighbours.

A rule takes what was reviewed and yields doubts. Shares of a peak count in two directions: a call
that is faster than the peaks allow did not do its work, and a call far below them was disturbed or
is a bad choice. The time that a call takes whatever it does is left out of the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from warmup.core.roofline import Peaks, gbps_of, tflops_of
from warmup.diagnostics.review.measurement import Doubt, Level, Measurement, Reviewed

HIGH_SHARE: Final = 0.9
LOW_SHARE: Final = 0.1
LOWEST_SHARE: Final = 0.01
MOST_SPREAD: Final = 0.5
_FALL: Final = 0.1  # between the times of two sizes of one call
_CONTRADICTION: Final = 1.25  # between two times of one call
_TIMER: Final = 0.02  # the device's clock and the host's may differ by this
_REPEATED: Final = 0.02  # beyond a peak, which is a measurement too

Rule = Callable[[Reviewed], Iterator[Doubt]]


def review(reviewed: Reviewed) -> tuple[Doubt, ...]:
    """Return every doubt of *reviewed*: probably wrong numbers first, the largest doubt first."""
    doubts = [doubt for rule in RULES for doubt in rule(reviewed)]
    levels = list(Level)
    return tuple(sorted(doubts, key=lambda one: (levels.index(one.level), -one.weight)))


def share_at_least(reviewed: Reviewed, one: Measurement) -> float | None:
    """Return the least share of the peaks that *one* reached; None where that is not known.

    The compute peak is that at the clock of the measurement. Bytes count with a cold L2 only,
    since a cache is faster than the memory.
    """
    return _share_at_least(reviewed, one, one.clock_mhz)


def _share_at_least(reviewed: Reviewed, one: Measurement, clock_mhz: int | None) -> float | None:
    if one.work is None or reviewed.peaks is None:
        return None
    time_us = one.work_us or one.time_us
    compute = _compute_share(reviewed.peaks, one, clock_mhz)
    is_cold = reviewed.is_cold and one.is_cold
    memory = gbps_of(one.work.moved, time_us) / reviewed.peaks.gbps if is_cold else None
    return max((share for share in (compute, memory) if share is not None), default=None)


def share_at_most(reviewed: Reviewed, one: Measurement) -> float | None:
    """Return the largest share of the peaks that *one* can have reached; None where not known.

    Of a launch key only bounds of the bytes are known. The latency of a call counts as time at the
    peak, and so do bytes that may have come from a cache.
    """
    if one.work is None or reviewed.peaks is None:
        return None
    time_us = one.work_us or one.time_us
    moved = one.work.most_moved or one.work.moved
    memory = gbps_of(moved, time_us) / reviewed.peaks.gbps
    share = max(memory, _compute_share(reviewed.peaks, one, one.clock_mhz) or 0)
    return share + reviewed.latency_us / time_us


def doubt_peaks(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield numbers beyond or near a measured peak, and numbers far below."""
    for one in reviewed.measurements:
        least, most = share_at_least(reviewed, one), share_at_most(reviewed, one)
        clock = "" if one.clock_mhz is None else f" at {one.clock_mhz} MHz"
        if least is not None and least > HIGH_SHARE:
            level = Level.WRONG if _is_beyond_peak(reviewed, one, least) else Level.LOOK
            yield Doubt(level, one.subject, f"{least:.0%} of the measured peak{clock}", least)
        elif most is not None and most < LOW_SHARE:
            level = Level.WRONG if most < LOWEST_SHARE else Level.LOOK
            reason = f"{most:.1%} of the measured peak: {_us(one.work_us or one.time_us)}{clock}"
            yield Doubt(level, one.subject, reason, LOW_SHARE / most)


def _is_beyond_peak(reviewed: Reviewed, one: Measurement, least: float) -> bool:
    """Whether *one* is faster than the peaks, both as they were measured and at its own clock.

    *least* is the share of the peaks at its own clock.
    A clock is read once, beside short runs, and a limit of power moves it within them. So a row at
    a lower clock than the peak's may be beyond the peak at its clock and still be true: on an H100
    at 1560 MHz products reached 117 % of it, and 92 % of the peak as it was measured. A time that a
    second measurement confirmed may be beyond a peak by as much as two measurements differ: reading
    1 GiB for a product with one row takes 1 % less than the copies and reads that make the peak.
    """
    unscaled = _share_at_least(reviewed, one, None)
    most = 1 + _REPEATED if one.is_repeated else 1
    return unscaled is not None and min(least, unscaled) > most


def doubt_spreads(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield times that scatter too much to mean anything."""
    for one in reviewed.measurements:
        if one.spread is not None and one.spread > MOST_SPREAD:
            reason = f"the middle half of its times is {one.spread:.0%} of the median wide"
            yield Doubt(Level.LOOK, one.subject, reason, one.spread)


def doubt_clocks(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield calls whose device was busy for longer than the whole call took.

    The two times are medians of different calls, so that they differ by the scatter of the calls.
    """
    for one in reviewed.measurements:
        margin = max(_TIMER, one.spread or 0)
        if one.total_us is not None and one.time_us > one.total_us * (1 + margin):
            reason = f"{_us(one.time_us)} on the device, of {_us(one.total_us)} in total"
            yield Doubt(Level.WRONG, one.subject, reason, one.time_us / one.total_us)


def doubt_falls(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield times that fall while the size of the same call grows, the largest fall of each."""
    series: dict[str, list[tuple[int, Measurement]]] = defaultdict(list)
    for one in reviewed.measurements:
        for name, size in one.series.items():
            series[name].append((size, one))
    for sized in series.values():
        sized.sort(key=lambda each: each[0])
        for place, (size, one) in enumerate(sized):
            slower = [
                (smaller, other)
                for smaller, other in sized[:place]
                if smaller < size and one.time_us < other.time_us * (1 - _margin(one, other))
            ]
            if slower:
                smaller, other = max(slower, key=lambda each: each[1].time_us)
                reason = (
                    f"the time falls: {_us(other.time_us)} at {smaller}, "
                    f"{_us(one.time_us)} at {size}"
                )
                yield Doubt(Level.LOOK, other.subject, reason, other.time_us / one.time_us)


def doubt_contradictions(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield the slowest time of a call that another measurement saw much faster."""
    calls: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for one in reviewed.measurements:
        if one.call is not None:
            name, time_us = one.call
            calls[name].append((time_us, one.subject))
    for name, same in calls.items():
        (slow_us, slowest), (fast_us, fastest) = max(same), min(same)
        if slow_us > fast_us * _CONTRADICTION:
            reason = f"{_us(slow_us)} for {name}, which took {_us(fast_us)} for: {fastest}"
            yield Doubt(Level.LOOK, slowest, reason, slow_us / fast_us)


def doubt_losers(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield winners that are slower than the library's kernel in their own row."""
    for one in reviewed.measurements:
        if one.library_us is not None and one.time_us > one.library_us * (1 + one.band):
            reason = f"{_us(one.time_us)}, and the library's kernel takes {_us(one.library_us)}"
            yield Doubt(Level.LOOK, one.subject, reason, one.time_us / one.library_us)


def doubt_flagged(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield what the measurement itself flagged."""
    for one in reviewed.measurements:
        for remark in one.remarks:
            yield Doubt(Level.LOOK, one.subject, remark, 1.0)


RULES: Final[tuple[Rule, ...]] = (
    doubt_peaks,
    doubt_spreads,
    doubt_clocks,
    doubt_falls,
    doubt_contradictions,
    doubt_losers,
    doubt_flagged,
)


def _compute_share(peaks: Peaks, one: Measurement, clock_mhz: int | None) -> float | None:
    """Return the share of the compute peak that *one* reached, None where no peak is known.

    The peak is that at *clock_mhz*, or without a clock the peak as it was measured.
    """
    work = one.work
    if work is None or not work.flops or work.dtype not in peaks.tflops:
        return None
    of_peak = peaks.clocks.get(work.dtype)
    clock = clock_mhz / of_peak if clock_mhz and of_peak else 1.0
    return tflops_of(work.flops, one.work_us or one.time_us) / (peaks.tflops[work.dtype] * clock)


def _margin(one: Measurement, other: Measurement) -> float:
    return max(_FALL, ((one.spread or 0) + (other.spread or 0)) / 2)


def _us(time_us: float) -> str:
    return f"{time_us:.4g} us" if time_us < 1000 else f"{time_us:.0f} us"  # noqa: PLR2004  digits
