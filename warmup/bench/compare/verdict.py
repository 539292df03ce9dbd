"""What a comparison says: speed-ups, rates, and one sentence for each variant. No torch.

A speed-up is the baseline's printed median over the variant's. Its interval comes from the ratios
of single rounds: both times of a round were taken within moments, so a drift of the device is in
both and not in the ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warmup.bench.compare.comparison import (
    BASELINE,
    BucketTime,
    Comparison,
    Ratio,
    Result,
    is_sound,
    rounded,
)
from warmup.core.roofline import gbps_of, tflops_of
from warmup.core.samples import geomean, interval_of


@dataclass(frozen=True, slots=True)
class BucketRates:
    """What a variant achieved in one bucket; shares are of the measured peaks, None without any."""

    tflops: float | None
    tflops_share: float | None
    gbps: float | None
    gbps_share: float | None


def speedups(report: Comparison, result: Result) -> tuple[Ratio, ...]:
    """Return how many times faster than the baseline *result* is in each bucket.

    Empty for the baseline itself, and for a variant that failed or disagrees with eager.
    """
    base = _base_of(report, result)
    if base is None:
        return ()
    return tuple(ratio(b, cell) for b, cell in zip(base.cells, result.cells, strict=True))


def overall(report: Comparison, result: Result) -> Ratio | None:
    """Return the geometric mean of the speed-ups over all buckets; None where there are none.

    Its interval is that of the same mean taken round by round.
    """
    base = _base_of(report, result)
    if base is None:
        return None
    pairs = list(zip(base.cells, result.cells, strict=True))
    by_round = zip(*(_round_ratios(*pair) for pair in pairs), strict=True)
    return _ratio(
        geomean([b.median_us / cell.median_us for b, cell in pairs]),
        [geomean(ratios) for ratios in by_round],
    )


def ratio(base: BucketTime, cell: BucketTime) -> Ratio:
    """Return how many times faster *cell* is than *base*."""
    return _ratio(base.median_us / cell.median_us, _round_ratios(base, cell))


def rates(report: Comparison, bucket: int, cell: BucketTime) -> BucketRates:
    """Return what *cell* achieved in the bucket of that index."""
    demand, peaks = report.demands[bucket], report.peaks
    moved, flops = demand.moved_bytes, demand.flops
    gbps = None if moved is None else rounded(gbps_of(moved, cell.median_us))
    tflops = None if flops is None else rounded(tflops_of(flops, cell.median_us))
    return BucketRates(
        tflops=tflops,
        tflops_share=_share(tflops, peaks.tflops.get(report.origin.dtype) if peaks else None),
        gbps=gbps,
        gbps_share=_share(gbps, peaks.gbps if peaks else None),
    )


def verdict(report: Comparison, result: Result) -> str:
    """Return what the comparison says of one variant, in the numbers that are printed."""
    if result.failure is not None:
        return f"failed: {result.failure}"
    for bucket, cell in zip(report.buckets, result.cells, strict=True):
        if not cell.agrees:
            return (
                f"out of tolerance: its output is {cell.error:.1e} away from eager's in {bucket} "
                f"(at most {cell.limit:.0e}); no speed-up is claimed"
            )
    if result.variant.name == BASELINE:
        return "the baseline"
    found = overall(report, result)
    return spell(found) if found is not None else f"no speed-up: {BASELINE} failed"


def spell(found: Ratio) -> str:
    """Return a speed-up in words: a gain, a loss, or none where the interval has 1.00 in it."""
    between = f"({found.low:.2f} to {found.high:.2f})"
    if found.low <= 1 <= found.high:
        return f"no measurable gain: {found.value:.2f}x {between}"
    if found.value > 1:
        return f"{found.value:.2f}x faster {between}"
    return f"slower, at {found.value:.2f}x the speed {between}"


def _share(rate: float | None, peak: float | None) -> float | None:
    return None if rate is None or peak is None else rate / peak


def _base_of(report: Comparison, result: Result) -> Result | None:
    base = report.baseline
    return base if base is not None and base is not result and is_sound(result) else None


def _round_ratios(base: BucketTime, cell: BucketTime) -> list[float]:
    return [b / own for b, own in zip(base.device.times_us, cell.device.times_us, strict=True)]


def _ratio(value: float, by_round: Sequence[float]) -> Ratio:
    low, high = interval_of(by_round)
    # The ratio of two medians is not the median of the ratios; the interval holds both.
    value = round(value, 2)
    return Ratio(value, min(round(low, 2), value), max(round(high, 2), value))
