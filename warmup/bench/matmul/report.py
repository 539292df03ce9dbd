"""What a benchmark of products found, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.bench.matmul.shapes import Shape
from warmup.core.dtypes import ITEM_BYTES
from warmup.core.method import L2, Launch
from warmup.core.roofline import Peaks, gbps_of, share_of_peak, tflops_of
from warmup.core.samples import Samples, geomean, interval_of

TORCH_COLUMN: Final = "torch"
TABLE_COLUMN: Final = "table"
COLUMNS: Final = (TORCH_COLUMN, "triton", "inductor-aten", "inductor-triton", TABLE_COLUMN)
_NO_DECIMALS_FROM_US: Final = 10_000
_ONE_DECIMAL_FROM: Final = 1000


class MatmulVerdict(StrEnum):
    """How the table's column stands against the best of the others."""

    FASTER = "faster"
    WITHIN_NOISE = "within noise"
    SLOWER = "slower"


def shown_us(time_us: float, beside: float | None = None) -> str:
    """Return a time as it is printed, 12.34, 1234.5 or 12345; with the decimals of *beside*."""
    size = time_us if beside is None else beside
    if size >= _NO_DECIMALS_FROM_US:
        return f"{time_us:.0f}"
    return f"{time_us:.1f}" if size >= _ONE_DECIMAL_FROM else f"{time_us:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One column at one shape: device time and total time per call, round by round.

    ``kernel`` says what runs, where that is known; ``error`` is the relative L2 distance to the
    reference.
    """

    device: Samples
    total: Samples
    error: float
    kernel: str

    @property
    def device_us(self) -> float:
        """The median device time in microseconds, as printed: whatever is derived starts here."""
        return float(shown_us(self.device.median))

    @property
    def total_us(self) -> float:
        """The median total time in microseconds, as printed."""
        return float(shown_us(self.total.median))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRatio:
    """The table's column over *best*, the fastest other one: ratio of medians, and its interval.

    The 95 % interval is that of the median of the ratios of times taken in one round.
    """

    best: str
    ratio: float
    interval: tuple[float, float]
    verdict: MatmulVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRates:
    """What a device time means. ``share`` is that of the measured peak, None without peaks."""

    tflops: float
    gbps: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """One shape: the columns that were timed, and why the others were not.

    ``hits`` counts the decisions that the table answered while its column was compiled, None
    without that column.
    """

    shape: Shape
    timed: Mapping[str, Timed]
    dropped: Mapping[str, str]
    hits: int | None = None

    @property
    def fastest(self) -> str | None:
        """The column with the smallest device time; on a tie the first, None without any."""
        return _fastest(self.timed)

    def comparison(self, near_tie: float) -> MatmulRatio | None:
        """Return how the table's column stands against the best other one; None without both.

        They are within noise of each other when the interval of their ratio holds 1, or when the
        ratio is nearer to 1 than the share *near_tie*.
        """
        best = _fastest({name: one for name, one in self.timed.items() if name != TABLE_COLUMN})
        if best is None or TABLE_COLUMN not in self.timed:
            return None
        own, other = self.timed[TABLE_COLUMN], self.timed[best]
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
        """What device times are times of: ``CPU`` or ``GPU``."""
        return "CPU" if self.device_type == "cpu" else "GPU"

    def rates(self, shape: Shape, timed: Timed) -> MatmulRates:
        """Return what the device time of a column at *shape* means.

        With a warm L2 the bytes come out of the cache, so only operations count for the share.
        """
        moved, time_us = shape.elements * ITEM_BYTES[self.dtype], timed.device_us
        share = None
        if self.peaks is not None:
            counted = moved if self.l2 is L2.COLD else 0
            share = share_of_peak(self.peaks, self.dtype, shape.flops, counted, time_us)
        return MatmulRates(
            tflops=tflops_of(shape.flops, time_us), gbps=gbps_of(moved, time_us), share=share
        )

    @property
    def comparisons(self) -> Mapping[Shape, MatmulRatio]:
        """How the table's column stands at each shape where it and another were timed."""
        pairs = ((one.shape, one.comparison(self.near_tie)) for one in self.shapes)
        return {shape: found for shape, found in pairs if found is not None}

    @property
    def speedup(self) -> float | None:
        """The geometric mean of torch over the table's column; None where both have no shape."""
        ratios = [
            one.timed[TORCH_COLUMN].device_us / one.timed[TABLE_COLUMN].device_us
            for one in self.shapes
            if TORCH_COLUMN in one.timed and TABLE_COLUMN in one.timed
        ]
        return geomean(ratios) if ratios else None

    @property
    def over_peak(self) -> tuple[str, ...]:
        """The columns, with their shapes, whose time is shorter than the measured peaks allow."""
        return tuple(
            f"{name} at {one.shape}"
            for one in self.shapes
            for name, timed in one.timed.items()
            if (self.rates(one.shape, timed).share or 0) > 1
        )


def _fastest(timed: Mapping[str, Timed]) -> str | None:
    return min(timed, key=lambda name: timed[name].device_us, default=None)
