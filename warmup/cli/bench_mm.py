"""`warmup bench mm`: the command, and what it found as text or JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from warmup.bench.matmul.report import (
    COLUMNS,
    TABLE_COLUMN,
    TORCH_COLUMN,
    MatmulVerdict,
    MmReport,
    Timed,
    shown_us,
)
from warmup.cli.arguments import DEVICE, JSON, L2_CACHE, LAUNCH
from warmup.cli.signals import interruptible
from warmup.core.errors import printable
from warmup.core.method import L2, Launch
from warmup.core.samples import Samples

_ROUNDS = 50
_NO_DECIMALS_FROM = 1000


def mm(
    *,
    shapes: Annotated[
        str | None, typer.Option(help="M x K x N: 128x9216x4096,2048x768x768; default ten of them.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the operands: f16, bf16 or f32.")] = "f16",
    launch: Annotated[Launch, LAUNCH] = Launch.CUDAGRAPH,
    l2: Annotated[L2, L2_CACHE] = L2.COLD,
    rounds: Annotated[int, typer.Option(min=1, help="Times of each column.")] = _ROUNDS,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for bench-mm.json, two charts and the table that is built."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Serve this table instead of building one.")
    ] = None,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare torch, Triton, inductor and a table on plain matrix products."""
    from warmup.bench.matmul.files import MATMUL_STEM, document, draw_charts
    from warmup.bench.matmul.run import bench_mm
    from warmup.cli.bench_results import BenchResults, say

    results = BenchResults(out, MATMUL_STEM, document, draw_charts)
    with interruptible(results.interrupted):
        report = bench_mm(
            shapes=shapes,
            dtype=dtype,
            launch=launch,
            l2=l2,
            rounds=rounds,
            out=out,
            table=table,
            device=device,
            say=say,
            keep=results.keep,
        )
    if as_json:
        json.dump(document(report), sys.stdout, indent=2, sort_keys=True)
        sys.stdout.write("\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in spell(report))
    results.finish(report)


def spell(report: MmReport) -> Iterator[str]:
    """Yield the lines of *report*: three tables that fit 80 columns, then what they say."""
    where, device = report.provenance, report.processor
    yield f"{where['device']}, torch {where['torch']}, Triton {where['triton']}, {where['date']}"
    yield (
        f"{report.dtype}, M x K x N row-major, {report.l2} L2, launch {report.launch}, "
        f"{report.rounds} rounds"
    )
    yield ""
    yield f"{device} us per call, median and 95 % interval"
    yield from _times(report, lambda timed: (timed.device_us, timed.device))
    yield ""
    yield "total us per call, launched one by one"
    yield from _times(report, lambda timed: (timed.total_us, timed.total))
    yield ""
    yield "the fastest by device time, and the table's column over the best other one"
    yield from _standings(report)
    yield ""
    yield from _summary(report)


def _times(report: MmReport, pick: Callable[[Timed], tuple[float, Samples]]) -> Iterator[str]:
    first, second = ["shape"], [""]
    for name in COLUMNS:
        family, _, backend = name.partition("-")
        first.append(family)
        second.append(backend)
    rows = [
        [str(one.shape), *(_time(*pick(one.timed[n])) if n in one.timed else "-" for n in COLUMNS)]
        for one in report.shapes
    ]
    yield from _grid([first, second, *rows])


def _time(median: float, samples: Samples) -> str:
    low, high = samples.interval
    return f"{shown_us(median)} ±{shown_us(max(median - low, high - median, 0.0), median)}"


def _rate(rate: float) -> str:
    if rate >= _NO_DECIMALS_FROM:
        return f"{rate:.0f}"
    return f"{rate:.1f}" if rate >= 1 else f"{rate:.1g}"


def _standings(report: MmReport) -> Iterator[str]:
    rows = [["shape", "fastest", "TFLOP/s", "GB/s", "peak", "ratio", "interval", ""]]
    for one in report.shapes:
        row = [str(one.shape)]
        if one.fastest is not None:
            rates = report.rates(one.shape, one.timed[one.fastest])
            share = "-" if rates.share is None else f"{rates.share:.0%}"
            row += [one.fastest, _rate(rates.tflops), _rate(rates.gbps), share]
        if (found := report.comparisons.get(one.shape)) is not None:
            low, high = found.interval
            row += [f"{found.ratio:.3f}", f"{low:.3f}-{high:.3f}", found.verdict.value]
        rows.append([*row, *["-"] * (len(rows[0]) - len(row))])
    yield from _grid(rows)


def _summary(report: MmReport) -> Iterator[str]:
    comparisons = report.comparisons
    if comparisons:
        counts = {v: sum(c.verdict is v for c in comparisons.values()) for v in MatmulVerdict}
        yield (
            f"table: no slower than the best other column, beyond noise, at "
            f"{len(comparisons) - counts[MatmulVerdict.SLOWER]} of {len(comparisons)}"
        )
        yield f"table: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"
    if report.speedup is not None:
        both = sum(TORCH_COLUMN in one.timed and TABLE_COLUMN in one.timed for one in report.shapes)
        yield f"table over torch: {report.speedup:.2f}x, geometric mean of {both} shapes"
        hits = sum(one.hits or 0 for one in report.shapes)
        yield f"table {(report.table or '')[:16]}: {hits} hits, 0 misses while compiling"
    else:
        yield "table: no shape was timed with it"
    if report.peaks is not None:
        clock = f" at {report.peaks.clock_mhz} MHz" if report.peaks.clock_mhz is not None else ""
        peak = report.peaks.tflops.get(report.dtype)
        rate = "" if peak is None else f"{peak:.0f} TFLOP/s {report.dtype}, "
        yield f"measured peaks{clock}: {rate}{report.peaks.gbps:.0f} GB/s"
    for name in report.over_peak:
        yield f"cannot be right, faster than the measured peak: {name}"
    for name in COLUMNS:
        reasons: dict[str, list[str]] = {}
        for one in report.shapes:
            if name in one.dropped:
                reasons.setdefault(one.dropped[name], []).append(str(one.shape))
        for reason, shapes in reasons.items():
            everywhere = len(shapes) == len(report.shapes)
            yield f"no {name}{'' if everywhere else ' at ' + ', '.join(shapes)}: {reason}"


def _grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield *rows* in columns: the first is flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        yield " ".join([f"{first:<{widths[0]}}", *cells]).rstrip()
