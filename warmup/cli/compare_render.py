"""The report of a comparison as text and as JSON.

Every ratio, rate and sentence is computed from the numbers that are printed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

from warmup.bench.compare.comparison import (
    BucketTime,
    Comparison,
    FirstOutput,
    How,
    Ratio,
    Result,
)
from warmup.bench.compare.verdict import host_limits, overall, rates, speedups, verdict
from warmup.cli.output import ABSENT, digits, fold, grid, percent, spell_peaks, timing, versions
from warmup.cli.phase_render import PHASES_PAGE, columns_by_bucket, phase_grid
from warmup.core.method import Launch
from warmup.core.phases import document_of
from warmup.core.units import MIB

_SCHEMA: Final = 2


def spell(report: Comparison) -> Iterator[str]:
    """Yield where the comparison ran, latencies, rates, starts, and a verdict for each variant.

    No line is wider than 80 columns where names allow.
    """
    yield from heading(report)
    for lines in (_latencies(report), _rates(report), _starts(report), *_phases(report)):
        yield ""
        yield from lines
    yield ""
    yield from sentences(report)


def heading(report: Comparison) -> Iterator[str]:
    """Yield where the comparison ran, on what, and how calls were timed."""
    origin = report.origin
    here = origin.runtime
    yield f"{origin.model} ({origin.dtype}) on {here.device.name or 'an unnamed device'}"
    yield f"{versions(here.torch, here.triton)}, warmup {origin.warmup}, {origin.created}"
    if origin.table is not None and origin.digest is not None:
        yield f"table {origin.table}, digest {origin.digest[:16]}"
    how = f"{origin.rounds} rounds, {timing(origin.launch, origin.l2)}"
    yield f"{how}, every start from empty caches"
    if report.peaks is not None:
        counted_dtypes = {dtype for demand in report.demands for dtype in demand.dtypes}
        yield spell_peaks(report.peaks, sorted({origin.dtype, *counted_dtypes}))


def sentences(report: Comparison) -> Iterator[str]:
    """Yield the verdict of each variant, then remarks about the run."""
    count = len(report.buckets)
    buckets = "1 bucket" if count == 1 else f"all {count} buckets"
    yield f"speed-up over default, geometric mean of {buckets}, with the 95 % interval:"
    for result in report.results:
        yield from fold(f"{result.variant.name}: {verdict(report, result)}", "  ", indent=4)
        if result.failure is not None and result.log is not None:
            yield f"    log {result.log}"
    yield from _host_limits(report)
    yield from (f"note: {remark}" for remark in report.remarks)
    shares = [rates(report, index, cell).gbps_share or 0 for _, index, cell in _cells(report)]
    if max(shares, default=0) > 1:
        yield "note: GB/s above the peak come from a warm L2, which held part of the operands"


def _host_limits(report: Comparison) -> Iterator[str]:
    """Yield where the host sets the time of calls launched one by one, and what helps."""
    limits = host_limits(report)
    if not limits:
        return
    yield from fold(
        f"launched one by one, calls in {len(limits)} of {len(report.buckets)} buckets take what "
        "the host needs to enqueue them, not what the device needs to run them:",
        indent=2,
    )
    for bucket, costs in limits:
        each = (
            f"{name} {digits(cost.launched_us)} us{'' if cost.is_host_limited else ' (device)'}"
            for name, cost in costs.items()
        )
        yield from fold(", ".join(each), f"  {bucket}: ", indent=4)
    advice = (
        "serve these buckets with CUDA graphs, with which the speed-ups above were measured"
        if report.origin.launch is Launch.CUDAGRAPH
        else "in these buckets the speed-ups above need CUDA graphs "
        "(mode reduce-overhead or max-autotune): compare with --launch cudagraph"
    )
    yield from fold(advice, "  ", indent=2)


def document(report: Comparison) -> dict[str, Any]:
    """Return *report* as JSON values; docs/how-to/compare-a-model.md has each."""
    origin = asdict(report.origin)
    peaks = report.peaks
    return {
        "schema": _SCHEMA,
        "origin": origin,
        "peaks": None if peaks is None else {**asdict(peaks), "tflops": dict(peaks.tflops)},
        "remarks": list(report.remarks),
        "variants": [_document_of_variant(report, result) for result in report.results],
        "buckets": [
            {
                "bucket": dict(bucket.sizes),
                **asdict(report.demands[index]),
                "variants": [
                    _document_of_cell(report, result, index)
                    for result in report.results
                    if result.cells
                ],
            }
            for index, bucket in enumerate(report.buckets)
        ],
    }


def _document_of_variant(report: Comparison, result: Result) -> dict[str, Any]:
    start = result.start
    return {
        **asdict(result.variant),
        "failure": result.failure,
        "log": result.log,
        "verdict": verdict(report, result),
        "speedup": _document_of_ratio(overall(report, result)),
        "start": None
        if start is None
        else {
            "process_seconds": start.process_seconds,
            "call_seconds": round(start.call_seconds, 3),
            "phases": document_of(start.phases),
            "phases_before": document_of(start.phases_before),
            "benchmarks": start.benchmarks,
            "sites": dict(start.sites),
            "hits": start.hits,
            "misses": start.misses,
            "miss_reasons": dict(start.miss_reasons),
            "peak_bytes": start.peak_bytes,
            "outputs": [_document_of_output(output) for output in start.outputs],
        },
    }


def _document_of_output(output: FirstOutput) -> dict[str, Any]:
    phases = document_of(output.phases)
    return {**asdict(output), "call_seconds": round(output.call_seconds, 3), "phases": phases}


def _document_of_cell(report: Comparison, result: Result, index: int) -> dict[str, Any]:
    cell, found = result.cells[index], speedups(report, result)
    return {
        "name": result.variant.name,
        "median_us": cell.median_us,
        "interval_us": list(cell.interval_us),
        "spread": round(cell.device.spread, 4),
        "wall_us": cell.wall_us,
        "host_us": None if cell.cost is None else cell.cost.host_us,
        "speedup": _document_of_ratio(found[index]) if found else None,
        "error": cell.error,
        "limit": cell.limit,
        "agrees": cell.agrees,
        **asdict(rates(report, index, cell)),
        "device_times_us": list(cell.device.times_us),
        "wall_times_us": list(cell.wall.times_us),
        "host_times_us": None if cell.host is None else list(cell.host.times_us),
    }


def _document_of_ratio(found: Ratio | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _cells(report: Comparison) -> Iterator[tuple[Result, int, BucketTime]]:
    """Yield each cell that was timed, bucket by bucket, with its variant and its bucket's index."""
    for index in range(len(report.buckets)):
        for result in report.results:
            if result.cells:
                yield result, index, result.cells[index]


def _names(report: Comparison, result: Result, index: int) -> list[str]:
    """Return the bucket, in its first line only, and the variant."""
    timed = [other for other in report.results if other.cells]
    return [str(report.buckets[index]) if result is timed[0] else "", result.variant.name]


def _latencies(report: Comparison) -> Iterator[str]:
    rows = []
    for result, index, cell in _cells(report):
        (low, high), found = cell.interval_us, speedups(report, result)
        rows.append(
            [
                *_names(report, result, index),
                digits(cell.median_us),
                f"{digits(low)}-{digits(high)}",
                f"{cell.device.spread:.1%}",
                digits(cell.wall_us),
                _spell_ratio(found[index]) if found else ABSENT,
            ]
        )
    head = ("bucket", "variant", "us", "95 %", "spread", "wall us", "over default")
    return grid(head, rows, texts=2, gap=1)


def _rates(report: Comparison) -> Iterator[str]:
    rows = []
    for result, index, cell in _cells(report):
        found = rates(report, index, cell)
        rows.append(
            [
                *_names(report, result, index),
                digits(found.tflops),
                percent(found.tflops_share),
                digits(found.gbps),
                percent(found.gbps_share),
                f"{cell.error:.1e}{'' if cell.agrees else '!'}",
            ]
        )
    head = ("bucket", "variant", "TFLOP/s", "of peak", "GB/s", "of peak", "error")
    return grid(head, rows, texts=2, gap=1)


def _starts(report: Comparison) -> Iterator[str]:
    rows: list[Sequence[str]] = []
    for result in report.results:
        if (start := result.start) is not None:
            counts = (start.benchmarks, start.hits, start.misses)
            rows.append(
                [
                    result.variant.name,
                    f"{start.process_seconds:.1f}",
                    f"{start.call_seconds:.1f}",
                    *(ABSENT if count is None else str(count) for count in counts),
                    f"{start.peak_bytes / MIB:.0f}",
                ]
            )
    head = ("start of", "all s", "calls s", "benchmarks", "hits", "misses", "peak MiB")
    return grid(head, rows, texts=1, gap=1)


def _phases(report: Comparison) -> Iterator[Iterator[str]]:
    """Yield the phases of all starts, and of each compiled variant's by bucket if several."""
    starts = {result.variant: result.start for result in report.results if result.start is not None}
    by_variant = {variant.name: start.phases for variant, start in starts.items()}
    yield chain([f"what the starts were made of ({PHASES_PAGE}):"], phase_grid(by_variant))
    for variant, start in starts.items():
        if variant.how is not How.EAGER and len(report.buckets) > 1:
            phases = [output.phases for output in start.outputs]
            pairs = list(zip(report.buckets, phases, strict=True))
            table = phase_grid(columns_by_bucket(start.phases_before, pairs))
            yield chain([f"what the start of {variant.name} was made of, by bucket:"], table)


def _spell_ratio(found: Ratio | None) -> str:
    if found is None:
        return "too busy"
    return f"{found.value:.2f}x ({found.low:.2f}-{found.high:.2f})"
