"""`profile_trace`: a trace by kernel, with the share of the peak that each reaches and its row.

`differences_of` compares two profiles call by call, so that traces of different lengths compare: a
decision by its key, whichever kernel serves it, and a kernel without a key by its name.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from warmup.bench.attribution import Attributed, Known, Reason, attribute, name_of, subject_of
from warmup.bench.trace import DeviceEvent, Range, Trace
from warmup.core.roofline import Peaks, Work, gbps_of, share_of_peak, tflops_of
from warmup.core.rows import Row, Scope
from warmup.core.text import counted
from warmup.core.trial import Samples
from warmup.table.codec import digest_of
from warmup.table.review import CPU_LATENCY_US, GPU_LATENCY_US, LOW_SHARE
from warmup.table.schema import Table

_DRIFT: Final = 0.1  # a trace's time may differ from the row's by this share


class Limit(StrEnum):
    """What a kernel's time is mostly spent on, by the larger of its shares of the peaks."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"  # too short for either: a call takes this long whatever it does
    OTHER = "other"  # below a tenth of both peaks, and long enough


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """All events of one name in one bucket that are about one decision.

    ``us`` are their times, ``per_iteration`` the sum in each iteration, ``share`` is of the
    bucket's device time. ``work`` is of one call, rates are over the kernel's median time, and
    ``peak_share`` is of the peak named by ``limit``. ``row_us`` is the row's own time, ``ratio``
    the median of whole calls over it; ``is_whole``: the row's time is that of the whole kernel.
    """

    name: str
    known_by: Known
    no_row: Reason | None
    keys: tuple[str, ...]
    row: Row | None
    us: tuple[float, ...]
    per_iteration: tuple[float, ...]
    share: float
    work: Work | None
    tflops: float | None
    gbps: float | None
    peak_share: float | None
    limit: Limit | None
    row_us: float | None
    ratio: float | None
    is_whole: bool

    @property
    def total_us(self) -> float:
        return sum(self.us)

    @property
    def has_drifted(self) -> bool:
        """Whether the trace's time is not the row's, and the row has the time of all of it."""
        return self.ratio is not None and self.is_whole and abs(self.ratio - 1) > _DRIFT


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketProfile:
    """The lines of one bucket, the most time first; None is the bucket of a trace without marks.

    ``busy_us`` is when kernels ran, ``host_gap_us`` when the device waited for kernels that the
    host enqueued late, ``device_gap_us`` when it waited though the next kernel was enqueued.
    """

    bucket: str | None
    iterations: int
    busy_us: float
    host_gap_us: float
    device_gap_us: float
    lines: tuple[KernelLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profiled trace; ``peaks`` are at the SM clock that was seen while it was recorded.

    ``outside_us`` is the time of events outside of any iteration.
    """

    device: str
    is_cpu: bool
    buckets: tuple[BucketProfile, ...]
    peaks: Peaks | None
    clock_mhz: int | None
    table: str | None
    outside_us: float
    skipped: int
    assumptions: tuple[str, ...]

    @property
    def lines(self) -> tuple[KernelLine, ...]:
        return tuple(line for bucket in self.buckets for line in bucket.lines)

    @property
    def device_us(self) -> float:
        return sum(line.total_us for line in self.lines)

    @property
    def missed_us(self) -> dict[str, float]:
        """The device time of each decision that has no row, by its key, the most time first."""
        found: dict[str, float] = defaultdict(float)
        for line in self.lines:
            if line.no_row in (Reason.MISS, Reason.NO_TABLE) and len(line.keys) == 1:
                found[line.keys[0]] += line.total_us
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def share_of(self, reason: Reason | None) -> float:
        own = sum(line.total_us for line in self.lines if line.no_row is reason)
        return own / self.device_us if self.device_us else 0.0


def profile_trace(trace: Trace, table: Table | None) -> Profile:
    """Return the profile of *trace* with the rows and peaks of *table*."""
    events = attribute(trace, table)
    inside = [e for e in events if not trace.iterations or e.event.iteration is not None]
    by_bucket: dict[str | None, list[Attributed]] = defaultdict(list)
    for each in inside:
        by_bucket[each.event.bucket].append(each)
    measured = None if table is None else table.provenance.peaks
    clocks = trace.plan.clocks if trace.plan is not None else ()
    clock = round(statistics.median(clocks)) if clocks else None
    peaks = None if measured is None else _at_clock(measured, clock)
    counts = Counter(mark.name for mark in trace.iterations)
    recorded = trace.plan.device if trace.plan is not None else ""
    return Profile(
        device=", ".join(trace.devices) or recorded or ("cpu" if trace.is_cpu else "unknown"),
        is_cpu=trace.is_cpu,
        buckets=tuple(
            _bucket(name, found, trace, peaks, counts[name] or 1)
            for name, found in by_bucket.items()
        ),
        peaks=peaks,
        clock_mhz=clock,
        table=None if table is None else digest_of(table),
        outside_us=sum(e.event.us for e in events) - sum(e.event.us for e in inside),
        skipped=trace.skipped,
        assumptions=tuple(_assumptions(trace, peaks, clock, events, table)),
    )


def _at_clock(peaks: Peaks, clock_mhz: int | None) -> Peaks:
    if clock_mhz is None:
        return peaks
    rates = {
        dtype: rate * clock_mhz / (peaks.clocks.get(dtype) or peaks.clock_mhz or clock_mhz)
        for dtype, rate in peaks.tflops.items()
    }
    clocks = dict.fromkeys(peaks.clocks, clock_mhz)
    return replace(peaks, tflops=rates, clock_mhz=clock_mhz, clocks=clocks)


def _assumptions(
    trace: Trace,
    peaks: Peaks | None,
    clock: int | None,
    events: Sequence[Attributed],
    table: Table | None,
) -> Iterator[str]:
    if not trace.iterations:
        yield "no marks of iterations in the trace: taken for one call of the model"
    if peaks is None:
        yield "no measured peaks: no shares of them (--table of a build that measured them)"
    elif clock is None and not trace.is_cpu:
        yield "the clock is not in the trace: peaks are at the clock of their measurement"
    if trace.plan is None:
        yield "no plan of the kernels in the trace: rows are found by shapes and names"
    elif table is not None and trace.plan.table != (digest := digest_of(table)):
        served = "no table" if trace.plan.table is None else f"the table {trace.plan.table[:16]}"
        yield f"the trace was recorded from {served}, not from {digest[:16]}"
    frozen = [key for key in table.rows if " b=packed " in key] if table is not None else []
    ran = {key for each in events for key in each.keys}
    if frozen and ran.isdisjoint(frozen):
        yield (
            f"the table's {counted(len(frozen), 'row')} for frozen weights ran nowhere: the trace "
            "is of weights that are not frozen; record it with WARMUP_FREEZING=1"
        )


def _bucket(
    name: str | None, found: Sequence[Attributed], trace: Trace, peaks: Peaks | None, count: int
) -> BucketProfile:
    groups: dict[tuple[object, ...], list[Attributed]] = defaultdict(list)
    calls: dict[tuple[str, ...], dict[object, float]] = defaultdict(lambda: defaultdict(float))
    windows: dict[tuple[str, Range | None], list[DeviceEvent]] = defaultdict(list)
    for each in found:
        groups[name_of(each.event), each.keys, each.reason].append(each)
        calls[each.keys][each.call] += each.event.us
        windows[each.event.device, each.event.iteration].append(each.event)
    device_us = sum(each.event.us for each in found)
    medians = {keys: statistics.median(times.values()) for keys, times in calls.items()}
    common = device_us, peaks, CPU_LATENCY_US if trace.is_cpu else GPU_LATENCY_US
    lines = [_line(own, medians[own[0].keys], *common) for own in groups.values()]
    gaps = [_gaps(events, mark) for (_, mark), events in windows.items()]
    busy_us, host_gap_us, device_gap_us = (sum(column) for column in zip(*gaps, strict=True))
    ordered = tuple(sorted(lines, key=lambda line: -line.total_us))
    return BucketProfile(
        bucket=name,
        iterations=count,
        busy_us=busy_us,
        host_gap_us=host_gap_us,
        device_gap_us=device_gap_us,
        lines=ordered,
    )


def _gaps(events: Sequence[DeviceEvent], mark: Range | None) -> tuple[float, float, float]:
    ordered = sorted(events, key=lambda event: event.begin)
    at = ordered[0].begin if mark is None else mark.begin
    busy = host = idle = 0.0
    for event in ordered:
        gap = max(event.begin - at, 0.0)
        late = 0.0 if event.launched is None else min(max(event.launched - at, 0.0), gap)
        host, idle = host + late, idle + gap - late
        done = max(at, event.begin + event.us)
        busy, at = busy + done - at - gap, done
    return busy, host + (0.0 if mark is None else max(mark.end - at, 0.0)), idle


def _line(
    own: Sequence[Attributed], call_us: float, device_us: float, peaks: Peaks | None, low_us: float
) -> KernelLine:
    first, us = own[0], tuple(each.event.us for each in own)
    worked = [each for each in own if each.work is not None]
    per_iteration: dict[Range | None, float] = defaultdict(float)
    for each in own:
        per_iteration[each.event.iteration] += each.event.us
    work = worked[0].work if worked else None
    tflops = gbps = share = limit = None
    if work is not None and (median_us := statistics.median(each.event.us for each in worked)):
        tflops = tflops_of(work.flops, median_us) if work.flops else None
        gbps = gbps_of(work.moved, median_us) if work.moved else None
        if peaks is not None:
            share = share_of_peak(peaks, work.dtype, work.flops, work.moved, median_us)
            limit = Limit.MEMORY if share == (gbps or 0.0) / peaks.gbps else Limit.COMPUTE
            if share < LOW_SHARE:
                limit = Limit.LATENCY if median_us <= low_us else Limit.OTHER
    expected, is_whole = (None, True) if first.row is None else row_us(first.row)
    part = sum(us) / device_us if device_us else 0.0
    ratio = call_us / expected if expected else None
    return KernelLine(
        name=name_of(first.event),
        known_by=first.known,
        no_row=first.reason,
        keys=first.keys,
        row=first.row,
        us=us,
        per_iteration=tuple(per_iteration.values()),
        share=part,
        work=work,
        tflops=tflops,
        gbps=gbps,
        peak_share=share,
        limit=limit,
        row_us=expected,
        ratio=ratio,
        is_whole=is_whole,
    )


def row_us(row: Row) -> tuple[float, bool]:
    """Return *row*'s time without other kernels of its region, and if it is a kernel's whole."""
    found = row.evidence
    if found.scope is Scope.BARE or found.bare_us is None:
        return found.time_us, True
    if not row.winner.fused:
        return found.bare_us, True
    return (found.time_us, True) if found.kernels == 1 else (found.bare_us, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDifference:
    """One decision or kernel in two traces: the median microseconds of an iteration.

    ``before`` and ``after`` name the kernels. ``interval`` is of the ratio, from the 95 % intervals
    of the two medians; None where a trace has a single iteration.
    """

    bucket: str | None
    subject: str | None
    before: tuple[str, ...]
    after: tuple[str, ...]
    before_us: float | None
    after_us: float | None
    interval: tuple[float, float] | None

    @property
    def added_us(self) -> float:
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def ratio(self) -> float | None:
        return self.after_us / self.before_us if self.before_us and self.after_us else None

    @property
    def is_certain(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]


def differences_of(before: Profile, after: Profile) -> tuple[KernelDifference, ...]:
    """Return by bucket the difference of all kernels, then the others, the largest change first."""
    found = []
    others = {bucket.bucket: bucket.lines for bucket in after.buckets}
    for bucket in before.buckets:
        if bucket.bucket not in others:
            continue
        sides = bucket.lines, others[bucket.bucket]
        subjects = defaultdict[str, tuple[list[KernelLine], ...]](lambda: ([], []))
        for turn, lines in enumerate(sides):
            for line in lines:
                subjects[subject_of(line.keys, line.name)][turn].append(line)
        pairs = [_difference(bucket.bucket, *each) for each in subjects.items()]
        found.append(_difference(bucket.bucket, None, sides))
        found += sorted(pairs, key=lambda each: -abs(each.added_us))
    return tuple(found)


def _difference(
    bucket: str | None, subject: str | None, sides: tuple[Sequence[KernelLine], ...]
) -> KernelDifference:
    before, after = (tuple(dict.fromkeys(line.name for line in side)) for side in sides)
    times = ([line.per_iteration for line in side] for side in sides)
    columns = (map(sum, itertools.zip_longest(*each, fillvalue=0.0)) for each in times)
    first, second = (Samples(each) if (each := tuple(own)) else None for own in columns)
    interval = None
    if first and second and len(first.times_us) > 1 and len(second.times_us) > 1:
        (low_a, high_a), (low_b, high_b) = first.interval, second.interval
        interval = (low_b / high_a, high_b / low_a) if high_a and low_a else None
    before_us, after_us = (None if each is None else each.median for each in (first, second))
    return KernelDifference(
        bucket=bucket,
        subject=subject,
        before=before,
        after=after,
        before_us=before_us,
        after_us=after_us,
        interval=interval,
    )
