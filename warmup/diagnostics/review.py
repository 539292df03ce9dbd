"""`review`: each time of a table held against what the device can do, and against its neighbours.

A rule takes what is reviewed and yields doubts. Shares of a peak count in two directions: a call
that is faster than the peaks allow did not do its work, and a call far below them was disturbed or
is a bad choice. The time that a call takes whatever it does is left out of the second. A table of
an earlier warmup has no peaks of its own; they follow from its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from warmup.core.errors import SettingsError
from warmup.core.method import L2
from warmup.core.ranking import bare_ranked
from warmup.core.roofline import Peaks, Work, gbps_of, tflops_of
from warmup.core.rows import Family, Flag, Row, Scope, is_for_host
from warmup.keys.registry import ingredients_of, product_of, work_of
from warmup.table import Table
from warmup.table.store import read

GPU_LATENCY_US: Final = 5.0  # of an empty kernel, from its launch to its end
CPU_LATENCY_US: Final = 20.0  # of an operator that wakes the threads of its pool
_READABLE_SHARE: Final = 0.1  # from here on three digits say something about the peak
_LIBRARY: Final = "the library's kernel"
_UNPADDED: Final = "as_is"
_REMARKS: Final = {
    Flag.UNSTABLE: "the times varied too much; the library's kernel was kept",
    Flag.OVER_PEAK: "faster than the measured peak, in a second measurement too",
    Flag.FAR_BELOW_PEAK: "far below the measured peak when it was built",
}
HIGH_SHARE: Final = 0.9
LOW_SHARE: Final = 0.1
LOWEST_SHARE: Final = 0.01
MOST_SPREAD: Final = 0.5
_FALL: Final = 0.1  # between the times of two sizes of one call
_CONTRADICTION: Final = 1.25  # between two times of one call
_REPEATED: Final = 0.02  # beyond a peak, which is a measurement too


class Level(StrEnum):
    """How far a number is doubted: measure it again, or look at it."""

    WRONG = "wrong"
    LOOK = "look"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One time of ``subject``, in microseconds on the device.

    ``work`` is what the call does at least, and ``work_us`` the time of that part of the call, the
    whole time by default. ``library_us`` is the time of the library's kernel for the same problem,
    ``band`` the share within which two times count as equal, ``spread`` the distance between the
    quartiles over the median. ``series`` has the size, by a name that only measurements of the same
    call at other sizes share. ``call`` names a kernel and the product that it computes, which other
    measurements may have timed too, and has its time. ``remarks`` are doubts of the measurement
    itself. ``is_repeated``: the time was beyond a peak, and a second measurement of it was too.
    """

    subject: str
    time_us: float
    work: Work | None = None
    work_us: float | None = None
    library_us: float | None = None
    band: float = 0.0
    spread: float | None = None
    clock_mhz: int | None = None
    series: Mapping[str, int] = field(default_factory=dict)
    call: tuple[str, float] | None = None
    remarks: tuple[str, ...] = ()
    is_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """All measurements of a table, with the peaks that they are held against.

    ``is_cold``: calls read their operands from memory, and not from a cache. ``latency_us`` is what
    a call takes that does nothing. ``origin`` says where the peaks come from.
    """

    measurements: tuple[Measurement, ...]
    peaks: Peaks | None
    origin: str
    is_cold: bool
    latency_us: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason not to believe the time of ``subject``; those with more ``weight`` come first."""

    level: Level
    subject: str
    reason: str
    weight: float


Rule = Callable[[Reviewed], Iterator[Doubt]]


def review(reviewed: Reviewed) -> tuple[Doubt, ...]:
    """Return every doubt of *reviewed*: probably wrong numbers first, the largest doubt first."""
    doubts = [doubt for rule in RULES for doubt in rule(reviewed)]
    levels = list(Level)
    return tuple(sorted(doubts, key=lambda one: (levels.index(one.level), -one.weight)))


def share_at_least(reviewed: Reviewed, one: Measurement, *, scaled: bool = True) -> float | None:
    """Return the least share of the peaks that *one* reached; None where that is not known.

    The compute peak is that at the clock of the measurement, or as it was measured unless *scaled*.
    Bytes count with a cold L2 only, since a cache is faster than the memory.
    """
    if one.work is None or reviewed.peaks is None:
        return None
    compute = _compute_share(reviewed.peaks, one, one.clock_mhz if scaled else None)
    moved_gbps = gbps_of(one.work.moved, one.work_us or one.time_us)
    memory = moved_gbps / reviewed.peaks.gbps if reviewed.is_cold else None
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
    unscaled = share_at_least(reviewed, one, scaled=False)
    most = 1 + _REPEATED if one.is_repeated else 1
    return unscaled is not None and min(least, unscaled) > most


def doubt_spreads(reviewed: Reviewed) -> Iterator[Doubt]:
    """Yield times that scatter too much to mean anything."""
    for one in reviewed.measurements:
        if one.spread is not None and one.spread > MOST_SPREAD:
            reason = f"the middle half of its times is {one.spread:.0%} of the median wide"
            yield Doubt(Level.LOOK, one.subject, reason, one.spread)


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


def review_table(table: Table, peaks: Peaks | None = None) -> Reviewed:
    """Return the rows of *table* as measurements, with *peaks*, or else those of the table."""
    own = table.provenance.peaks
    if peaks is not None:
        origin = "given"
    elif own is not None:
        peaks, origin = own, "stored with the table"
    else:
        peaks, origin = implied_peaks(table), "implied by the rows"
    is_cpu = table.provenance.runtime.device.type == "cpu"
    return Reviewed(
        measurements=tuple(_measurement(key, row) for key, row in table.rows.items()),
        peaks=peaks,
        origin=origin,
        is_cold=table.policy.timing.l2 is L2.COLD,
        latency_us=CPU_LATENCY_US if is_cpu else GPU_LATENCY_US,
    )


def peaks_in(path: Path) -> Peaks:
    """Return the peaks of the table *path*, the value of `--peaks`: stored, or else implied.

    Raises:
        SettingsError: no row of the table has a share of a peak.
        TableError: the table cannot be read.
    """
    table = read(path)
    peaks = table.provenance.peaks or implied_peaks(table)
    if peaks is None:
        raise SettingsError(f"--peaks {path}: it has no measured peaks", "name another table")
    return peaks


def implied_peaks(table: Table) -> Peaks | None:
    """Return the peaks that the shares in *table* were computed with; None without shares."""
    gbps, tflops = 0.0, defaultdict[str, float](float)
    clocks = []
    for key, row in table.rows.items():
        found, work = row.evidence, work_of(key)
        if found.peak_share is None or found.peak_share < _READABLE_SHARE or work is None:
            continue
        gbps = max(gbps, (found.gbps or 0) / found.peak_share)
        tflops[work.dtype] = max(tflops[work.dtype], (found.tflops or 0) / found.peak_share)
        clocks += [found.clock_mhz] if found.clock_mhz is not None else []
    if not gbps:
        return None
    rates = {dtype: round(rate, 1) for dtype, rate in tflops.items() if rate}
    return Peaks(
        tflops=rates,
        gbps=round(gbps, 1),
        clock_mhz=max(clocks, default=None),
        measured=table.provenance.created[:10],
    )


def _measurement(key: str, row: Row) -> Measurement:
    found = row.evidence
    return Measurement(
        subject=key,
        time_us=found.time_us,
        work=work_of(key),
        work_us=found.bare_us if found.scope is Scope.FUSED else None,
        # A winner for the host may be slower than the library's kernel.
        library_us=None if is_for_host(found) else found.library_us,
        band=max(found.band or 0, *(ratio - 1 for _, ratio in found.along if ratio), 0),
        spread=found.spread,
        clock_mhz=found.clock_mhz,
        series=_series(key, row),
        call=_call(key, row),
        is_repeated=Flag.OVER_PEAK in found.flags,
        remarks=tuple(_REMARKS[flag] for flag in found.flags if flag in _REMARKS),
    )


def _call(key: str, row: Row) -> tuple[str, float] | None:
    """Return the kernel and the product whose time *row* has, with the time.

    For a pad row that is the product as it is, by the library's kernel.
    """
    product, found = product_of(key), row.evidence
    time_us = found.bare_us if found.scope is Scope.FUSED else found.time_us
    is_library = row.winner.family is Family.EXTERN and row.winner.uid.startswith("aten::")
    if row.winner.family is Family.PAD:
        own = {name: own_us for own_us, name in bare_ranked(found)}
        is_own = found.scope is Scope.BARE  # of a region the times are not those of the product
        time_us, is_library = found.library_us if is_own else own.get(_UNPADDED), True
    if product is None or time_us is None:
        return None
    return f"{product} by {_LIBRARY if is_library else row.winner}", time_us


def _series(key: str, row: Row) -> dict[str, int]:
    """Return the number of rows by the key without them; nothing where a key has no such size."""
    named = ingredients_of(key)
    size = named.get("m", "").rpartition("..")[2]
    if not size:
        return {}
    others = key.replace(f" m={named['m']} ", " m=* ", 1)
    return {f"{others} {row.evidence.scope}": int(size)}
