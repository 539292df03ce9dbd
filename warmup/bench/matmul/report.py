"""`MmReport`: the results of the matmul benchmark, with rates, ratios and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.bench.matmul.shapes import Shape, model_of
from warmup.core.dtypes import ITEM_BYTES
from warmup.core.method import L2, Launch
from warmup.core.roofline import Peaks, gbps_of, share_of_peak, tflops_of
from warmup.core.samples import Samples, busy_sentence, first_busy_sentence, geomean, interval_of

TORCH_COLUMN: Final = "torch"
TABLE_COLUMN: Final = "table"
TF32_COLUMN: Final = "torch-tf32"
CPP_COLUMN: Final = "inductor-cpp"
COLUMNS: Final = (
    *(TORCH_COLUMN, TF32_COLUMN, "triton"),
    *("inductor-aten", "inductor-triton", CPP_COLUMN, TABLE_COLUMN),
)
_NO_DECIMALS_FROM_US: Final = 10_000
_ONE_DECIMAL_FROM: Final = 1000


def columns_for(device_type: str, dtype: str) -> tuple[str, ...]:
    """Return the columns that a *device_type* has for *dtype*, in order.

    TF32 is a form of f32 on a GPU, and inductor's C++ template is for CPUs.
    """
    is_cpu = device_type == "cpu"
    absent = {TF32_COLUMN} if is_cpu else {CPP_COLUMN}
    if dtype != "f32":
        absent.add(TF32_COLUMN)
    return tuple(name for name in COLUMNS if name not in absent)


class MatmulVerdict(StrEnum):
    """The table's column against the fastest other column, or no verdict on a busy machine."""

    FASTER = "faster"
    WITHIN_NOISE = "within noise"
    SLOWER = "slower"
    TOO_BUSY = "too busy"


def shown_us(time_us: float, beside: float | None = None) -> str:
    """Return *time_us* as text: 12.34, 1234.5 or 12345; with as many decimals as *beside* has."""
    size = time_us if beside is None else beside
    if size >= _NO_DECIMALS_FROM_US:
        return f"{time_us:.0f}"
    return f"{time_us:.1f}" if size >= _ONE_DECIMAL_FROM else f"{time_us:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSplit:
    """The host's microseconds of one call, until it is enqueued, and what they went to.

    ``guards`` are checked, ``allocation`` makes the output, ``launch`` enqueues the kernel, on a
    CPU runs it. The rest is dynamo's frame evaluation, the wrappers of AOTAutograd and inductor,
    and checks of inputs. Parts are None in columns that are not compiled. ``reason`` is the error
    that ended the measurement, empty where none did; the total and the parts are then None.
    """

    total: float | None
    guards: float | None = None
    allocation: float | None = None
    launch: float | None = None
    reason: str = ""

    @property
    def rest(self) -> float | None:
        """The total less all parts, None where any of them is unknown."""
        parts = self.guards, self.allocation, self.launch
        known = [part for part in parts if part is not None]
        if self.total is None or len(known) < len(parts):
            return None
        return self.total - sum(known)


HOST_PARTS: Final = ("total", "guards", "allocation", "launch", "rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One column at one shape: device time and total time per call, round by round.

    ``kernel`` is a short name of the kernel, empty where unknown; ``error`` is the relative L2
    distance of the output from the reference.
    """

    device: Samples
    total: Samples
    error: float
    kernel: str
    host: HostSplit

    @property
    def device_us(self) -> float:
        """The median device time in microseconds, as printed; ratios and rates derive from it."""
        return float(shown_us(self.device.median))

    @property
    def total_us(self) -> float:
        """The median total time in microseconds, as printed."""
        return float(shown_us(self.total.median))


@dataclass(frozen=True, slots=True)
class MatmulRatio:
    """The table's column over *best*, the fastest other column: ratio of medians with an interval.

    The interval is the 95 % interval of the median of the per-round ratios. With the verdict
    ``too busy`` the times of *best* scatter too far: there is no ratio and no interval.
    """

    best: str
    ratio: float | None
    interval: tuple[float, float] | None
    verdict: MatmulVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRates:
    """A device time as rates. ``share`` is its share of the roofline, None without peaks."""

    tflops: float
    gbps: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """One shape: the columns that were timed, and why the others were not.

    ``hits`` counts the decisions that the table answered while its column was compiled, None
    without that column. ``is_unstable`` is whether a row that answered is flagged ``unstable``.
    """

    shape: Shape
    timed: Mapping[str, Timed]
    dropped: Mapping[str, str]
    hits: int | None = None
    is_unstable: bool = False

    @property
    def fastest(self) -> str | None:
        """The column with the smallest device time; on a tie the first, None without any."""
        return _fastest(self.timed)

    def comparison(self, near_tie: float) -> MatmulRatio | None:
        """Return the table's column over the fastest other column; None where either is missing.

        TF32 is no such column: it rounds its operands, which a table's kernels for f32 do not. The
        verdict is within noise when the interval of the ratio contains 1, or when the ratio differs
        from 1 by at most *near_tie*.
        """
        unlike = {TABLE_COLUMN, TF32_COLUMN}
        best = _fastest({name: timed for name, timed in self.timed.items() if name not in unlike})
        if best is None or TABLE_COLUMN not in self.timed:
            return None
        own, other = self.timed[TABLE_COLUMN], self.timed[best]
        if busy_sentence(best, other.device) is not None:
            return MatmulRatio(best, None, None, MatmulVerdict.TOO_BUSY)
        pairs = zip(own.device.times_us, other.device.times_us, strict=True)
        low, high = interval_of([a / b for a, b in pairs])
        ratio = own.device_us / other.device_us
        if low <= 1 <= high or abs(ratio - 1) <= near_tie:
            verdict = MatmulVerdict.WITHIN_NOISE
        else:
            verdict = MatmulVerdict.SLOWER if ratio > 1 else MatmulVerdict.FASTER
        return MatmulRatio(best=best, ratio=ratio, interval=(low, high), verdict=verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MmReport:
    """A finished benchmark. ``table`` is the digest of the table that was served, None without.

    ``peaks`` are those of the device, None where there are none.
    """

    provenance: Mapping[str, str | None]
    device_type: str
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    near_tie: float
    peaks: Peaks | None
    table: str | None
    shapes: tuple[ShapeResult, ...]

    @property
    def processor(self) -> str:
        """The kind of processor that device times are measured on: ``CPU`` or ``GPU``."""
        return "CPU" if self.device_type == "cpu" else "GPU"

    def rates(self, shape: Shape, column: str, timed: Timed) -> MatmulRates:
        """Return the device time of *column* at *shape* as rates, in TFLOP/s and GB/s.

        With a warm L2 the bytes come out of the cache, so only operations count for the share.
        TF32 has a peak of its own.
        """
        moved, time_us = shape.elements * ITEM_BYTES[self.dtype], timed.device_us
        share = None
        if self.peaks is not None:
            counted = moved if self.l2 is L2.COLD else 0
            dtype = "tf32" if column == TF32_COLUMN else self.dtype
            share = share_of_peak(self.peaks, dtype, shape.flops, counted, time_us)
        return MatmulRates(
            tflops=tflops_of(shape.flops, time_us), gbps=gbps_of(moved, time_us), share=share
        )

    @property
    def comparisons(self) -> Mapping[Shape, MatmulRatio]:
        """The table's column over the fastest other column, at each shape where both were timed."""
        pairs = ((result.shape, result.comparison(self.near_tie)) for result in self.shapes)
        return {shape: ratio for shape, ratio in pairs if ratio is not None}

    @property
    def speedup(self) -> float | None:
        """The geometric mean of torch over the table's column; None without shapes of both.

        None too where the machine was `too_busy`.
        """
        return self.mean_speedup(TABLE_COLUMN)

    def mean_speedup(self, column: str, model: str | None = None) -> float | None:
        """Return the geometric mean of torch over *column* at the shapes of *model*, or at all.

        None without shapes of both, and where the machine was `too_busy`.
        """
        ratios = [
            result.timed[TORCH_COLUMN].device_us / result.timed[column].device_us
            for result in self.shapes
            if TORCH_COLUMN in result.timed and column in result.timed
            if model in (None, model_of(result.shape))
        ]
        return geomean(ratios) if ratios and self.too_busy is None else None

    @property
    def models(self) -> tuple[str, ...]:
        """The models that timed shapes come from, in order."""
        names = (model_of(result.shape) for result in self.shapes)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns with a time at any shape, in order."""
        return tuple(n for n in COLUMNS if any(n in result.timed for result in self.shapes))

    def host_us(self, column: str, part: str) -> float | None:
        """Return the median over shapes of a part of the host's time of *column*; None without."""
        splits = (result.timed[column].host for result in self.shapes if column in result.timed)
        values = [getattr(split, part) for split in splits]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    @property
    def too_busy(self) -> str | None:
        """Why the times of torch's column allow no verdict, at its first such shape; else None."""
        return first_busy_sentence(
            (f"{TORCH_COLUMN} at {result.shape}", result.timed[TORCH_COLUMN].device)
            for result in self.shapes
            if TORCH_COLUMN in result.timed
        )

    @property
    def unstable(self) -> tuple[Shape, ...]:
        """The shapes at which the table's column serves a row that is flagged ``unstable``."""
        return tuple(result.shape for result in self.shapes if result.is_unstable)

    @property
    def over_peak(self) -> tuple[str, ...]:
        """The columns, with their shapes, whose time is shorter than the measured peaks allow."""
        return tuple(
            f"{name} at {result.shape}"
            for result in self.shapes
            for name, timed in result.timed.items()
            if (self.rates(result.shape, name, timed).share or 0) > 1
        )


def _fastest(timed: Mapping[str, Timed]) -> str | None:
    return min(timed, key=lambda name: timed[name].device_us, default=None)
