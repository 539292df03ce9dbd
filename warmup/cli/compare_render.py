"""A comparison as text for people and as JSON for machines.

Every ratio, rate and sentence is computed from the numbers that are printed with it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from warmup.bench.compare.comparison import Comparison, Ratio, Result, decimals_of, rounded
from warmup.bench.compare.verdict import overall, rates, speedups, verdict
from warmup.core.errors import SettingsError, printable
from warmup.core.files import replace_text

_SCHEMA = 1
_WIDE = 10_000
_MIB = 2**20
_NONE = "-"


def print_comparison(report: Comparison) -> None:
    """Print where it ran, then latencies, rates, starts, and a sentence for each variant."""
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(markup=False, highlight=False, width=width)
    for line in heading(report):
        console.print(printable(line), soft_wrap=True)
    for grid in (_latencies(report), _rates(report), _starts(report)):
        console.print()
        console.print(grid)
    console.print()
    for line in sentences(report):
        console.print(printable(line), soft_wrap=True)


def heading(report: Comparison) -> Iterator[str]:
    """Yield where the comparison ran, on what, and how calls were timed."""
    origin = report.origin
    here = origin.runtime
    versions = f"torch {here.torch}, triton {here.triton or 'none'}"
    yield f"{origin.model} ({origin.dtype}) on {here.device.name or 'an unnamed device'}"
    yield f"{versions}, warmup {origin.warmup}, {origin.created}"
    if origin.table is not None and origin.digest is not None:
        yield f"table {origin.table}, digest {origin.digest[:16]}"
    how = f"{origin.rounds} rounds, launch {origin.launch}, L2 {origin.l2}"
    yield f"{how}, every start from empty caches"
    if report.peaks is not None:
        peak = report.peaks.tflops.get(origin.dtype)
        of_dtype = "" if peak is None else f"{peak:.0f} TFLOP/s in {origin.dtype} and "
        yield f"measured peaks: {of_dtype}{report.peaks.gbps:.0f} GB/s ({report.peaks.measured})"


def sentences(report: Comparison) -> Iterator[str]:
    """Yield the verdict of each variant, then what else is to be known."""
    count = len(report.buckets)
    buckets = "1 bucket" if count == 1 else f"all {count} buckets"
    yield f"over default, geometric mean of {buckets}, with the 95 % interval:"
    for result in report.results:
        yield f"  {result.variant.name}: {verdict(report, result)}"
        if result.failure is not None and result.log is not None:
            yield f"    log {result.log}"
    yield from (f"note: {remark}" for remark in report.remarks)
    if any(
        (share or 0) > 1
        for result in report.results
        for index, cell in enumerate(result.cells)
        for share in [rates(report, index, cell).gbps_share]
    ):
        yield "note: more than the peak in GB/s: the L2 is warm, and held some of what was read"


def write_document(report: Comparison, path: Path) -> None:
    """Put the JSON form of *report* at *path*.

    Raises:
        SettingsError: it cannot be written.
    """
    try:
        replace_text(path, json.dumps(document(report), indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise SettingsError(f"--out {path}: {error.strerror}", "name a writable folder") from error


def print_document(found: dict[str, Any]) -> None:
    """Print a JSON document on stdout."""
    json.dump(found, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")


def document(report: Comparison) -> dict[str, Any]:
    """Return *report* as JSON values; docs/how-to/compare-a-model.md says what each is."""
    origin = asdict(report.origin)
    peaks = report.peaks
    return {
        "schema": _SCHEMA,
        "origin": origin,
        "peaks": None if peaks is None else {**asdict(peaks), "tflops": dict(peaks.tflops)},
        "remarks": list(report.remarks),
        "variants": [_variant(report, result) for result in report.results],
        "buckets": [
            {
                "bucket": dict(bucket.sizes),
                **asdict(report.demands[index]),
                "variants": [
                    _cell(report, result, index) for result in report.results if result.cells
                ],
            }
            for index, bucket in enumerate(report.buckets)
        ],
    }


def _variant(report: Comparison, result: Result) -> dict[str, Any]:
    start = result.start
    return {
        **asdict(result.variant),
        "failure": result.failure,
        "log": result.log,
        "verdict": verdict(report, result),
        "speedup": _ratio(overall(report, result)),
        "start": None
        if start is None
        else {
            "process_seconds": start.process_seconds,
            "call_seconds": round(start.call_seconds, 3),
            "import_seconds": start.import_seconds,
            "load_seconds": start.load_seconds,
            "install_seconds": start.install_seconds,
            "measure_seconds": start.measure_seconds,
            "benchmarks": start.benchmarks,
            "sites": dict(start.sites),
            "hits": start.hits,
            "misses": start.misses,
            "miss_reasons": dict(start.miss_reasons),
            "peak_bytes": start.peak_bytes,
            "outputs": [asdict(output) for output in start.outputs],
        },
    }


def _cell(report: Comparison, result: Result, index: int) -> dict[str, Any]:
    cell, found = result.cells[index], speedups(report, result)
    return {
        "name": result.variant.name,
        "median_us": cell.median_us,
        "interval_us": list(cell.interval_us),
        "spread": round(cell.device.spread, 4),
        "wall_us": cell.wall_us,
        "speedup": _ratio(found[index]) if found else None,
        "error": cell.error,
        "limit": cell.limit,
        "agrees": cell.agrees,
        **asdict(rates(report, index, cell)),
        "device_times_us": list(cell.device.times_us),
        "wall_times_us": list(cell.wall.times_us),
    }


def _ratio(found: Ratio | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _latencies(report: Comparison) -> Grid:
    grid = _grid("bucket", "variant", "us", "95 %", "spread", "wall us", "over default")
    for index, bucket in enumerate(report.buckets):
        name = str(bucket)
        for result in report.results:
            if not result.cells:
                continue
            cell, found = result.cells[index], speedups(report, result)
            low, high = cell.interval_us
            grid.add_row(
                name,
                result.variant.name,
                _digits(cell.median_us),
                f"{_digits(low)}-{_digits(high)}",
                f"{cell.device.spread:.1%}",
                _digits(cell.wall_us),
                _spell(found[index]) if found else _NONE,
            )
            name = ""
    return grid


def _rates(report: Comparison) -> Grid:
    grid = _grid("bucket", "variant", "TFLOP/s", "of peak", "GB/s", "of peak", "error")
    for index, bucket in enumerate(report.buckets):
        name = str(bucket)
        for result in report.results:
            if not result.cells:
                continue
            cell = result.cells[index]
            found = rates(report, index, cell)
            grid.add_row(
                name,
                result.variant.name,
                _digits(found.tflops),
                _percent(found.tflops_share),
                _digits(found.gbps),
                _percent(found.gbps_share),
                f"{cell.error:.1e}{'' if cell.agrees else '!'}",
            )
            name = ""
    return grid


def _starts(report: Comparison) -> Grid:
    grid = _grid("start of", "all s", "calls s", "benchmarks", "hits", "misses", "peak MiB")
    for result in report.results:
        start = result.start
        if start is None:
            continue
        grid.add_row(
            result.variant.name,
            f"{start.process_seconds:.1f}",
            f"{start.call_seconds:.1f}",
            str(start.benchmarks),
            _NONE if start.hits is None else str(start.hits),
            _NONE if start.misses is None else str(start.misses),
            f"{start.peak_bytes / _MIB:.0f}",
        )
    return grid


def _grid(*columns: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        is_text = column in ("bucket", "variant", "start of")
        grid.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
    return grid


def _digits(value: float | None) -> str:
    return _NONE if value is None else f"{rounded(value):.{decimals_of(value)}f}"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.0%}"


def _spell(found: Ratio) -> str:
    return f"{found.value:.2f}x ({found.low:.2f}-{found.high:.2f})"
