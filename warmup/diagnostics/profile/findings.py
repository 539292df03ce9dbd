"""What to do about a profile: its doubtful numbers, rows that drifted, problems worth building."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from warmup.core.miss_reasons import MissReason
from warmup.core.roofline import Work
from warmup.core.samples import Samples
from warmup.diagnostics.profile.attribution import Reason
from warmup.diagnostics.profile.profile import KernelLine, Profile
from warmup.diagnostics.review import (
    CPU_LATENCY_US,
    GPU_LATENCY_US,
    Doubt,
    Measurement,
    Reviewed,
    review,
)


@dataclass(frozen=True, slots=True)
class MissedCost:
    """A problem without a row: microseconds of device time in all, over ``count`` launches."""

    key: str
    us: float
    count: int


def review_profile(profile: Profile) -> tuple[Doubt, ...]:
    """Return what a review doubts in the times of *profile*, by the rules of `warmup review`.

    Operands may come from a cache here, so a rate of memory beyond the peak is no contradiction.
    """
    measured = tuple(
        Measurement(
            subject=f"{line.bucket}: {line.name}" if line.bucket else line.name,
            time_us=line.mean_us,
            work=Work(line.dtype, line.flops, line.moved) if line.moved else None,
            spread=Samples(line.us).spread,
            clock_mhz=profile.clock_mhz,
        )
        for line in profile.lines
    )
    latency_us = CPU_LATENCY_US if profile.is_cpu else GPU_LATENCY_US
    return review(
        Reviewed(
            measurements=measured,
            peaks=profile.peaks,
            origin="stored with the table",
            is_cold=False,
            latency_us=latency_us,
        )
    )


def drifted_lines(profile: Profile) -> tuple[KernelLine, ...]:
    """Return the lines whose time is not that of their row, the most time first."""
    lines = [line for line in profile.lines if line.has_drifted]
    return tuple(sorted(lines, key=lambda line: -line.total_us))


def missed_costs(profile: Profile) -> tuple[MissedCost, ...]:
    """Return the problems that have no row, what they cost, the most time first."""
    us: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for line in profile.lines:
        if line.reason in (Reason.MISS, Reason.NO_TABLE) and len(line.keys) == 1:
            us[line.keys[0]] += line.total_us
            counts[line.keys[0]] += len(line.us)
    return tuple(
        MissedCost(key, us[key], counts[key]) for key in sorted(us, key=lambda key: -us[key])
    )


def missed_counts(profile: Profile) -> dict[tuple[str, str], int]:
    """Return the launches of each problem without a row, by key and reason of a miss."""
    reason = MissReason.NOT_IN_TABLE.value
    return {(cost.key, reason): cost.count for cost in missed_costs(profile)}
