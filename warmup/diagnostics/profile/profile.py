"""`Profile`: a trace by kernel, with what each computes, what limits it, and its row's own time."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from warmup.core.roofline import Peaks, Work, gbps_of, tflops_of
from warmup.core.rows import Row
from warmup.diagnostics.profile.alignment import name_of
from warmup.diagnostics.profile.attribution import Attributed, Known, Reason, attribute, row_us
from warmup.diagnostics.profile.gaps import Gaps, gaps_of, total
from warmup.diagnostics.profile.trace import Trace
from warmup.diagnostics.review import CPU_LATENCY_US, GPU_LATENCY_US, LOW_SHARE
from warmup.table import Table

PROFILE_SCHEMA: Final = 1  # of the document that `warmup profile --json` prints
DRIFT: Final = 0.1  # a trace's time may differ from the row's by this share


class Limit(StrEnum):
    """What a kernel's time is mostly spent on, by the larger of its shares of the peaks."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"  # too short for either: a call takes this long whatever it does
    OTHER = "other"  # below a tenth of both peaks, and long enough


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """All events of one name in one bucket that are about one decision.

    ``us`` are their times in the trace's order, and ``per_iteration`` the sum in each iteration.
    ``share`` is of the bucket's device time. ``flops`` and ``moved`` are of one call, ``tflops``
    and ``gbps`` the rates over the kernel's median time, ``peak_share`` the share of the peak named
    by ``limit``. ``row_us`` is the row's own time, ``ratio`` the median of whole calls over it.
    ``is_whole``: the row's time is that of the whole kernel. Fields are None where not known.
    """

    bucket: str | None
    name: str
    known: Known
    reason: Reason | None
    keys: tuple[str, ...]
    row: Row | None
    us: tuple[float, ...]
    per_iteration: tuple[float, ...]
    share: float
    dtype: str = ""
    flops: int | None = None
    moved: int | None = None
    tflops: float | None = None
    gbps: float | None = None
    peak_share: float | None = None
    limit: Limit | None = None
    row_us: float | None = None
    ratio: float | None = None
    is_whole: bool = True

    @property
    def total_us(self) -> float:
        """The time of all events."""
        return sum(self.us)

    @property
    def mean_us(self) -> float:
        """The mean time of an event."""
        return statistics.fmean(self.us)

    @property
    def has_drifted(self) -> bool:
        """Whether the trace's time is not the row's, and the row has the time of all of it."""
        return self.ratio is not None and self.is_whole and abs(self.ratio - 1) > DRIFT


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketProfile:
    """The lines of one bucket, the most time first; None is the bucket of a trace without marks.

    ``iterations`` is how often the model was called, 1 where the trace does not say.
    """

    bucket: str | None
    iterations: int
    gaps: Gaps
    lines: tuple[KernelLine, ...]

    @property
    def device_us(self) -> float:
        """The time of all kernels, those that ran beside others too."""
        return sum(line.total_us for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profiled trace. ``clock_mhz`` is the SM clock that was seen while it was recorded.

    ``peaks`` are the measured peaks, at that clock where it is known. ``outside_us`` is the time of
    events outside of any iteration. ``assumptions`` say what the figures rest on.
    """

    device: str
    is_cpu: bool
    buckets: tuple[BucketProfile, ...]
    peaks: Peaks | None
    clock_mhz: int | None
    digest: str | None
    outside_us: float
    skipped: int
    assumptions: tuple[str, ...] = ()
    attributed: tuple[Attributed, ...] = field(default=(), repr=False)

    @property
    def lines(self) -> tuple[KernelLine, ...]:
        """The lines of all buckets."""
        return tuple(line for bucket in self.buckets for line in bucket.lines)

    @property
    def device_us(self) -> float:
        """The device time of all buckets."""
        return sum(bucket.device_us for bucket in self.buckets)

    def share_of(self, *reasons: Reason | None) -> float:
        """Return the share of device time in kernels with one of *reasons*; None: with a row."""
        own = sum(line.total_us for line in self.lines if line.reason in reasons)
        return own / self.device_us if self.device_us else 0.0


def profile_trace(
    trace: Trace,
    table: Table | None,
    *,
    peaks: Peaks | None = None,
    iterations: int | None = None,
    digest: str | None = None,
) -> Profile:
    """Return the profile of *trace* with the rows of *table*.

    *peaks* default to the table's. *iterations* says how often the model was called, for a trace
    without marks.
    """
    events = attribute(trace, table)
    marked = bool(trace.iterations)
    inside = [each for each in events if not marked or each.event.iteration is not None]
    by_bucket: dict[str | None, list[Attributed]] = defaultdict(list)
    for each in inside:
        by_bucket[each.event.bucket].append(each)
    own = peaks or (None if table is None else table.provenance.peaks)
    clock = _clock(trace)
    scaled = None if own is None else at_clock(own, clock)
    counts = Counter(mark.name for mark in trace.iterations)
    buckets = tuple(
        _bucket(name, found, trace, scaled, counts[name] or iterations or 1)
        for name, found in by_bucket.items()
    )
    device = ", ".join(trace.devices) or (trace.plan.device if trace.plan is not None else "")
    return Profile(
        device=device or ("cpu" if trace.is_cpu else "unknown"),
        is_cpu=trace.is_cpu,
        buckets=buckets,
        peaks=scaled,
        clock_mhz=clock,
        digest=digest,
        outside_us=sum(each.event.us for each in events) - sum(each.event.us for each in inside),
        skipped=trace.skipped,
        assumptions=tuple(_assumptions(trace, own, clock, iterations, digest)),
        attributed=events,
    )


def at_clock(peaks: Peaks, clock_mhz: int | None) -> Peaks:
    """Return *peaks* with the rates of each dtype at *clock_mhz*, where both clocks are known."""
    if clock_mhz is None:
        return peaks
    rates = {
        dtype: rate * clock_mhz / (peaks.clocks.get(dtype) or peaks.clock_mhz or clock_mhz)
        for dtype, rate in peaks.tflops.items()
    }
    return Peaks(
        tflops=rates,
        gbps=peaks.gbps,
        clock_mhz=clock_mhz,
        measured=peaks.measured,
        clocks=dict.fromkeys(peaks.clocks, clock_mhz),
    )


def _clock(trace: Trace) -> int | None:
    clocks = trace.plan.clocks if trace.plan is not None else ()
    return round(statistics.median(clocks)) if clocks else None


def _assumptions(
    trace: Trace, peaks: Peaks | None, clock: int | None, iterations: int | None, digest: str | None
) -> list[str]:
    said = []
    if not trace.iterations:
        count = "one call of the model" if iterations is None else f"{iterations} calls"
        said.append(f"no marks of iterations in the trace: taken for {count} (--iterations)")
    if peaks is None:
        said.append("no measured peaks: no shares of them (--peaks FILE)")
    elif clock is None and not trace.is_cpu:
        said.append("the clock is not in the trace: peaks are at the clock of their measurement")
    if trace.plan is None:
        said.append("no plan of the kernels in the trace: rows are found by shapes and names")
    elif digest is not None and trace.plan.table != digest:
        served = "no table" if trace.plan.table is None else f"the table {trace.plan.table[:16]}"
        said.append(f"the trace was recorded from {served}, not from {digest[:16]}")
    return said


@dataclass(frozen=True, slots=True)
class _Limits:
    """A device's peaks, and the time of a call that does nothing."""

    peaks: Peaks | None
    latency_us: float

    def of(self, work: Work | None, us: float) -> tuple[Limit | None, float | None]:
        """Return what limits a call of *us*, and its share of that peak; None where not known."""
        if work is None or self.peaks is None or us <= 0:
            return None, None
        peak = self.peaks.tflops.get(work.dtype)
        compute = tflops_of(work.flops, us) / peak if work.flops and peak else 0.0
        memory = gbps_of(work.moved, us) / self.peaks.gbps
        share = max(compute, memory)
        if share >= LOW_SHARE:
            return (Limit.COMPUTE if compute >= memory else Limit.MEMORY), share
        return (Limit.LATENCY if us <= self.latency_us else Limit.OTHER), share


def _bucket(
    name: str | None, found: Sequence[Attributed], trace: Trace, peaks: Peaks | None, count: int
) -> BucketProfile:
    groups: dict[tuple[object, ...], list[Attributed]] = defaultdict(list)
    calls: dict[tuple[str, ...], dict[object, float]] = defaultdict(lambda: defaultdict(float))
    for each in found:
        groups[name_of(each.event), each.keys, each.reason].append(each)
        calls[each.keys][each.call] += each.event.us
    device_us = sum(each.event.us for each in found)
    limits = _Limits(peaks, CPU_LATENCY_US if trace.is_cpu else GPU_LATENCY_US)
    lines = [_line(name, own, calls[own[0].keys], device_us, limits) for own in groups.values()]
    return BucketProfile(
        bucket=name,
        iterations=count,
        gaps=_gaps(found, trace),
        lines=tuple(sorted(lines, key=lambda line: -line.total_us)),
    )


def _gaps(found: Sequence[Attributed], trace: Trace) -> Gaps:
    by_range: dict[tuple[str, int | None], list[Attributed]] = defaultdict(list)
    for each in found:
        by_range[each.event.device, each.event.iteration].append(each)
    parts = []
    for (_, number), own in by_range.items():
        mark = None if number is None else trace.iterations[number]
        begin, end = (None, None) if mark is None else (mark.begin, mark.end)
        parts.append(gaps_of([each.event for each in own], begin, end))
    return total(parts)


def _line(
    bucket: str | None,
    own: Sequence[Attributed],
    calls: Mapping[object, float],
    device_us: float,
    limits: _Limits,
) -> KernelLine:
    first = own[0]
    us = tuple(each.event.us for each in own)
    per_iteration: dict[int | None, float] = defaultdict(float)
    for each in own:
        per_iteration[each.event.iteration] += each.event.us
    worked = [each for each in own if each.work is not None]
    work = worked[0].work if worked else None
    median_us = statistics.median(each.event.us for each in worked) if worked else 0.0
    expected, is_whole = (None, True) if first.row is None else row_us(first.row)
    call_us = statistics.median(calls.values()) if calls else None
    limit, share = limits.of(work, median_us)
    return KernelLine(
        bucket=bucket,
        name=name_of(first.event),
        known=first.known,
        reason=first.reason,
        keys=first.keys,
        row=first.row,
        us=us,
        per_iteration=tuple(per_iteration.values()),
        share=sum(us) / device_us if device_us else 0.0,
        dtype="" if work is None else work.dtype,
        flops=None if work is None else work.flops,
        moved=None if work is None else work.moved or None,
        tflops=tflops_of(work.flops, median_us) if work and work.flops and median_us else None,
        gbps=gbps_of(work.moved, median_us) if work and work.moved and median_us else None,
        peak_share=share,
        limit=limit,
        row_us=expected,
        ratio=call_us / expected if expected and call_us is not None else None,
        is_whole=is_whole,
    )
