"""`warmup bench mm`: the command, and its report as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from warmup.bench.matmul.report import (
    COLUMNS,
    TABLE_COLUMN,
    TORCH_COLUMN,
    MatmulRatio,
    MatmulVerdict,
    MmReport,
    Timed,
    shown_us,
)
from warmup.cli import options
from warmup.cli.output import ABSENT, MEANINGS, digits, fold, grid, percent, spell_peaks
from warmup.core.method import L2, Launch
from warmup.core.samples import Samples


def mm(
    *,
    shapes: Annotated[
        str | None,
        typer.Option(help="MxKxN: 128x9216x4096,2048x768x768; default ten common shapes."),
    ] = None,
    dtype: options.OperandDtype = "f16",
    launch: options.TimedLaunch = Launch.CUDAGRAPH,
    l2: options.TimedL2 = L2.COLD,
    rounds: options.BenchRounds = 50,
    out: options.ResultFolder = None,
    table: Annotated[
        Path | None, typer.Option(help="The table to serve; default a table that is built first.")
    ] = None,
    device: options.DeviceOption = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Time plain GEMMs: torch, Triton, inductor and a table."""
    from warmup.bench.matmul.files import MATMUL_STEM, document, draw_charts
    from warmup.bench.matmul.run import bench_mm
    from warmup.cli.bench_results import BenchResults

    bench = partial(
        bench_mm,
        shapes=shapes,
        dtype=dtype,
        launch=launch,
        l2=l2,
        rounds=rounds,
        out=out,
        table=table,
        device=device,
    )
    BenchResults(out, MATMUL_STEM, document, draw_charts).run(bench, spell, as_json=as_json)


def spell(report: MmReport) -> Iterator[str]:
    """Yield three tables of at most 80 columns, then what follows from them."""
    from warmup.cli.bench_results import spell_origin

    yield from spell_origin(report)
    yield "shapes are M x K x N, row-major"
    yield ""
    yield f"{report.processor} us per call, median and 95 % interval"
    yield from _times(report, lambda timed: (timed.device_us, timed.device))
    yield ""
    yield "total us per call, launched one by one"
    yield from _times(report, lambda timed: (timed.total_us, timed.total))
    yield ""
    yield "fastest by device time; ratio of the table's time to the best other column's"
    yield from _standings(report)
    yield ""
    yield from _summary(report)


def _times(report: MmReport, pick: Callable[[Timed], tuple[float, Samples]]) -> Iterator[str]:
    columns = [name.partition("-") for name in COLUMNS]
    rows = [["", *(backend for _, _, backend in columns)]]
    for result in report.shapes:
        cells = (_time(*pick(result.timed[n])) if n in result.timed else ABSENT for n in COLUMNS)
        rows.append([str(result.shape), *cells])
    head = ("shape", *(family for family, _, _ in columns))
    yield from grid(head, rows, texts=1, gap=1)


def _time(median: float, samples: Samples) -> str:
    low, high = samples.interval
    return f"{shown_us(median)} ±{shown_us(max(median - low, high - median, 0.0), median)}"


def _standings(report: MmReport) -> Iterator[str]:
    head = ("shape", "fastest", "TFLOP/s", "GB/s", "peak", "ratio", "interval", "")
    rows = []
    for result in report.shapes:
        row = [str(result.shape)]
        if result.fastest is not None:
            rates = report.rates(result.shape, result.timed[result.fastest])
            row += [result.fastest, digits(rates.tflops), digits(rates.gbps), percent(rates.share)]
        if (found := report.comparisons.get(result.shape)) is not None:
            row += [*_interval(found), found.verdict.value]
        rows.append([*row, *[ABSENT] * (len(head) - len(row))])
    yield from grid(head, rows, texts=2, gap=1)


def _interval(found: MatmulRatio) -> tuple[str, str]:
    if found.ratio is None or found.interval is None:
        return ABSENT, ABSENT
    low, high = found.interval
    return f"{found.ratio:.3f}", f"{low:.3f}-{high:.3f}"


def _summary(report: MmReport) -> Iterator[str]:
    """Yield how the table stands, the measured peaks, and why columns are missing."""
    comparisons = report.comparisons
    if comparisons:
        counts = {v: sum(c.verdict is v for c in comparisons.values()) for v in MatmulVerdict}
        yield (
            f"table: no slower than the best other column, beyond noise, at "
            f"{len(comparisons) - counts[MatmulVerdict.SLOWER]} of {len(comparisons)} shapes"
        )
        yield f"table: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"
    if report.speedup is not None:
        both = sum(
            TORCH_COLUMN in result.timed and TABLE_COLUMN in result.timed
            for result in report.shapes
        )
        yield f"table over torch: {report.speedup:.2f}x, geometric mean of {both} shapes"
        hits = sum(result.hits or 0 for result in report.shapes)
        yield f"table {(report.table or '')[:16]}: {hits} hits ({MEANINGS['hits']}), 0 misses"
    elif report.too_busy is not None:
        yield from fold(report.too_busy, indent=2)
    else:
        yield "table: no shape was timed with it"
    if report.peaks is not None:
        yield spell_peaks(report.peaks, [report.dtype])
    for name in report.over_peak:
        yield f"{name}: cannot be right, faster than the measured peak"
    for name in COLUMNS:
        reasons: dict[str, list[str]] = {}
        for result in report.shapes:
            if name in result.dropped:
                reasons.setdefault(result.dropped[name], []).append(str(result.shape))
        for reason, shapes in reasons.items():
            everywhere = len(shapes) == len(report.shapes)
            yield f"no {name}{'' if everywhere else ' at ' + ', '.join(shapes)}: {reason}"
