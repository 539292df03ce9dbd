"""The charts of a comparison: what is in each of them."""

from __future__ import annotations

from collections.abc import Callable

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.compare.comparison import BucketTime, Comparison, Result
from warmup.bench.compare.verdict import rates

_LOG_FROM = 20.0  # the ratio of the longest to the shortest time from which a linear axis hides one


def charts_of(report: Comparison) -> dict[str, Chart]:
    """Return the charts of *report* by file name; one without a single number is left out."""
    peaks, dtype = report.peaks, report.origin.dtype
    peak = peaks.tflops.get(dtype) if peaks else None
    latencies = [c.median_us for result in report.results for c in result.cells]
    found = {
        "compare-latency": Chart(
            title=f"Latency of {report.origin.model}",
            subtitle=f"median device time of one call, {_launched(report)}; lower is better",
            x_label="bucket",
            y_label="microseconds",
            groups=_buckets(report),
            series=tuple(_latency(result) for result in report.results if result.cells),
            log=bool(latencies) and max(latencies) > _LOG_FROM * min(latencies),
            note=_note(report),
        ),
        "compare-bandwidth": Chart(
            title=f"Memory bandwidth of {report.origin.model}",
            subtitle="weights, inputs and outputs moved once, over the median time; "
            "higher is better",
            x_label="bucket",
            y_label="GB/s",
            groups=_buckets(report),
            series=_rate_series(report, lambda index, cell: rates(report, index, cell).gbps),
            reference=("measured peak", peaks.gbps) if peaks else None,
            note=_note(report),
        ),
        "compare-tflops": Chart(
            title=f"Arithmetic of {report.origin.model}",
            subtitle="operations of the eager model over the median time; higher is better",
            x_label="bucket",
            y_label="TFLOP/s",
            groups=_buckets(report),
            series=_rate_series(report, lambda index, cell: rates(report, index, cell).tflops),
            reference=(f"measured {dtype} peak", peak) if peak is not None else None,
            note=_note(report),
        ),
        "compare-start": Chart(
            title=f"Start of {report.origin.model}",
            subtitle="from the start of the process to the first outputs of all buckets, "
            "caches empty; lower is better",
            x_label="variant",
            y_label="seconds",
            groups=tuple(result.variant.name for result in report.results),
            series=(
                Series(
                    name="first outputs of all buckets",
                    values=tuple(
                        None if result.start is None else result.start.process_seconds
                        for result in report.results
                    ),
                ),
            ),
            note=_note(report),
        ),
    }
    return {
        name: chart
        for name, chart in found.items()
        if any(value is not None for series in chart.series for value in series.values)
    }


def _latency(result: Result) -> Series:
    return Series(
        name=result.variant.name,
        values=tuple(cell.median_us for cell in result.cells),
        low=tuple(cell.interval_us[0] for cell in result.cells),
        high=tuple(cell.interval_us[1] for cell in result.cells),
    )


def _rate_series(
    report: Comparison, rate: Callable[[int, BucketTime], float | None]
) -> tuple[Series, ...]:
    return tuple(
        Series(
            name=result.variant.name,
            values=tuple(rate(index, cell) for index, cell in enumerate(result.cells)),
        )
        for result in report.results
        if result.cells
    )


def _buckets(report: Comparison) -> tuple[str, ...]:
    return tuple(str(bucket) for bucket in report.buckets)


def _launched(report: Comparison) -> str:
    origin = report.origin
    return f"launch {origin.launch}, {origin.l2} L2, {origin.rounds} rounds, 95 % intervals"


def _note(report: Comparison) -> str:
    here = report.origin.runtime
    return (
        f"{here.device.name}, torch {here.torch}, triton {here.triton or 'none'}, "
        f"warmup {report.origin.warmup}, {report.origin.created[:10]}"
    )
