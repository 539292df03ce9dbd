"""`verdict`: the sentence of a report on a variant, with its speed-ups and rates. No torch.

A speed-up is the printed median of the baseline over that of the variant. Its interval comes from
the ratios of single rounds: the two times of a round are taken shortly after each other, so a drift
of the device cancels in their ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warmup.bench.compare.comparison import (
    BASELINE,
    REFERENCE_VARIANT,
    BucketTime,
    Comparison,
    Ratio,
    Result,
    is_sound,
    rounded,
)
from warmup.buckets.bucket import Bucket
from warmup.core.call_cost import CallCost
from warmup.core.dtypes import narrowest
from warmup.core.roofline import gbps_of, tflops_of
from warmup.core.samples import busy_sentence, first_busy_sentence, geomean, interval_of


@dataclass(frozen=True, slots=True)
class BucketRates:
    """The rates of a variant in a bucket, and their shares of the measured peaks, if known."""

    tflops: float | None
    tflops_share: float | None
    gbps: float | None
    gbps_share: float | None


def speedups(report: Comparison, result: Result) -> tuple[Ratio | None, ...]:
    """Return the speed-up of *result* over the baseline in each bucket.

    None where the baseline's times scatter too far for a ratio. Empty for the baseline itself, and
    for a variant that failed or disagrees with eager.
    """
    base = _base_of(report, result)
    if base is None:
        return ()
    return tuple(
        None if busy_sentence(BASELINE, b.device) else ratio(b, cell)
        for b, cell in zip(base.cells, result.cells, strict=True)
    )


def overall(report: Comparison, result: Result) -> Ratio | None:
    """Return the geometric mean of the speed-ups of all buckets; None unless each has a speed-up.

    Its interval comes from the geometric means of the single rounds.
    """
    base = _base_of(report, result)
    if base is None or too_busy(report) is not None:
        return None
    pairs = list(zip(base.cells, result.cells, strict=True))
    by_round = zip(*(_round_ratios(*pair) for pair in pairs), strict=True)
    return _ratio(
        geomean([b.median_us / cell.median_us for b, cell in pairs]),
        [geomean(ratios) for ratios in by_round],
    )


def too_busy(report: Comparison) -> str | None:
    """Return why the baseline's times allow no verdict, with the first such bucket, else None."""
    base = report.baseline
    cells = zip(report.buckets, base.cells, strict=True) if base is not None else ()
    return first_busy_sentence((f"{BASELINE} in {bucket}", cell.device) for bucket, cell in cells)


def host_limits(report: Comparison) -> tuple[tuple[Bucket, dict[str, CallCost]], ...]:
    """Return the buckets in which the host limits a compiled variant, launched one by one.

    With each comes what a call costs in every sound variant, by name. Empty on a CPU.
    """
    if report.origin.runtime.device.type == "cpu":
        return ()
    sound = [result for result in report.results if is_sound(result)]
    found = []
    for index, bucket in enumerate(report.buckets):
        cells = [(result, result.cells[index].cost) for result in sound]
        costs = {result.variant.name: cost for result, cost in cells if cost is not None}
        compiled = [cost for name, cost in costs.items() if name != REFERENCE_VARIANT]
        if any(cost.is_host_limited for cost in compiled):
            found.append((bucket, costs))
    return tuple(found)


def ratio(base: BucketTime, cell: BucketTime) -> Ratio:
    """Return the speed-up of *cell* over *base*."""
    return _ratio(base.median_us / cell.median_us, _round_ratios(base, cell))


def rates(report: Comparison, bucket: int, cell: BucketTime) -> BucketRates:
    """Return the rates of *cell* in the bucket with index *bucket*.

    The share of operations is that of the peak of the narrowest dtype that was counted.
    """
    demand, peaks = report.demands[bucket], report.peaks
    moved, flops = demand.moved_bytes, demand.flops
    dtype = narrowest(demand.dtypes, report.origin.dtype)
    gbps = None if moved is None else rounded(gbps_of(moved, cell.median_us))
    tflops = None if flops is None else rounded(tflops_of(flops, cell.median_us))
    return BucketRates(
        tflops=tflops,
        tflops_share=_share(tflops, peaks.tflops.get(dtype) if peaks else None),
        gbps=gbps,
        gbps_share=_share(gbps, peaks.gbps if peaks else None),
    )


def verdict(report: Comparison, result: Result) -> str:
    """Return the sentence of the report on *result*, with the printed numbers."""
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
    speedup = overall(report, result)
    if speedup is not None:
        return spell(speedup)
    return too_busy(report) or f"no speed-up: {BASELINE} failed"


def spell(speedup: Ratio) -> str:
    """Return a speed-up in words: a gain, a loss, or neither if the interval contains 1.00."""
    between = f"({speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.low <= 1 <= speedup.high:
        return f"no measurable gain: {speedup.value:.2f}x {between}"
    if speedup.value > 1:
        return f"{speedup.value:.2f}x faster {between}"
    return f"slower, at {speedup.value:.2f}x the speed {between}"


def _share(rate: float | None, peak: float | None) -> float | None:
    return None if rate is None or peak is None else rate / peak


def _base_of(report: Comparison, result: Result) -> Result | None:
    base = report.baseline
    return base if base is not None and base is not result and is_sound(result) else None


def _round_ratios(base: BucketTime, cell: BucketTime) -> list[float]:
    return [b / own for b, own in zip(base.device.times_us, cell.device.times_us, strict=True)]


def _ratio(value: float, by_round: Sequence[float]) -> Ratio:
    low, high = interval_of(by_round)
    # The ratio of the medians can lie outside the interval of the ratios, which is widened to it.
    value = round(value, 2)
    return Ratio(value, min(round(low, 2), value), max(round(high, 2), value))
