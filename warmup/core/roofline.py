"""`Peaks`, the largest rates measured on a device, and `Work`, what a call does at least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_PER_US_TO_TERA: Final = 1e-6
_PER_US_TO_GIGA: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The largest rates measured on one device, with the date and the SM clock of the measurement.

    ``tflops`` is by the short dtype name of the operands (``bf16``); ``gbps`` counts bytes read
    plus bytes written. ``clock_mhz`` is the clock after all of it, and ``clocks`` has, by dtype,
    the clock right after its matmuls, which a limit of power may have lowered. None and absent
    where the clock could not be read.
    """

    tflops: Mapping[str, float]
    gbps: float
    clock_mhz: int | None
    measured: str
    clocks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of a problem: operations (None where unknown) and bytes moved.

    ``most_moved`` is an upper bound of the bytes, where a key has rounded sizes; None where the
    least is also what a sensible kernel moves.
    """

    dtype: str
    flops: int | None
    moved: int
    most_moved: int | None = None


def tflops_of(flops: int, time_us: float) -> float:
    """Return the rate of *flops* operations in *time_us*, in TFLOP/s."""
    return flops / time_us * _PER_US_TO_TERA


def gbps_of(moved: int, time_us: float) -> float:
    """Return the rate of *moved* bytes in *time_us*, in GB/s."""
    return moved / time_us * _PER_US_TO_GIGA


def share_of_peak(peaks: Peaks, dtype: str, flops: int | None, moved: int, time_us: float) -> float:
    """Return the larger of a call's shares of the bandwidth peak and of the compute peak.

    The compute peak counts only where *flops* and the peak of *dtype* are known.
    """
    share = gbps_of(moved, time_us) / peaks.gbps
    peak = peaks.tflops.get(dtype)
    if flops and peak:
        share = max(share, tflops_of(flops, time_us) / peak)
    return share
