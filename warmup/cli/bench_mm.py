"""`warmup bench mm`: the command, and its report as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warmup.bench.matmul.report import (
    COLUMNS,
    HOST_PARTS,
    TABLE_COLUMN,
    TF32_COLUMN,
    TORCH_COLUMN,
    MatmulRatio,
    MatmulVerdict,
    MmReport,
    Timed,
    shown_us,
)
from warmup.bench.matmul.shapes import Shape, model_of
from warmup.cli import options
from warmup.cli.output import (
    ABSENT,
    MEANINGS,
    TEXT_WIDTH,
    digits,
    fold,
    grid,
    percent,
    spell_peaks,
    times,
)
from warmup.core.method import L2, Launch
from warmup.core.samples import Samples

if TYPE_CHECKING:
    from warmup.bench.matmul.against import Against

_HOST_UNTIL: Final = {"CPU": "done", "GPU": "enqueued"}


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
    against: Annotated[
        Path | None,
        typer.Option(help="An earlier bench-mm.json, to print each time over the earlier time."),
    ] = None,
    charts: options.BenchCharts = True,
    device: options.DeviceOption = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Time plain GEMMs: torch, Triton, inductor and a table."""
    from warmup.bench.matmul.against import read_against
    from warmup.bench.matmul.files import MATMUL_STEM, document, draw_charts
    from warmup.bench.matmul.run import bench_mm
    from warmup.cli.bench_results import BenchResults

    earlier = None if against is None else read_against(against)
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
    written = partial(document, against=earlier)
    printed = partial(spell, against=earlier)
    results: BenchResults[MmReport] = BenchResults(out, MATMUL_STEM, written, draw_charts, charts)
    results.run(bench, printed, as_json=as_json)


def spell(report: MmReport, against: Against | None = None) -> Iterator[str]:
    """Yield tables of at most 80 columns, then what follows from them.

    With *against* the last table has the times over those of that benchmark.
    """
    from warmup.cli.bench_results import spell_origin

    yield from spell_origin(report)
    yield "shapes are M x K x N, row-major" + _where(report)
    for model in report.models:
        shapes = ", ".join(str(r.shape) for r in report.shapes if model_of(r.shape) == model)
        yield from fold(f"{model}: {shapes}", indent=2)
    yield ""
    yield f"{report.processor} us per call, median and 95 % interval"
    yield from _times(report, lambda timed: (timed.device_us, timed.device))
    yield ""
    yield "total us per call, launched one by one"
    yield from _times(report, lambda timed: (timed.total_us, timed.total))
    yield ""
    yield "fastest by device time; ratio of the table's time to the best other column's"
    yield from _standings(report)
    if report.speedup is not None or report.too_busy is None:
        yield ""
        yield "torch's device time over the column's, geometric mean"
        yield from _means(report)
    yield ""
    yield f"host us per call until it is {_HOST_UNTIL[report.processor]}, medians over the shapes"
    yield from _host(report)
    if against is not None:
        yield ""
        yield from _changes(report, against)
    yield ""
    yield from _summary(report)


def _where(report: MmReport) -> str:
    return "" if report.processor == "GPU" else "; K x N is a constant weight in compiled columns"


def _times(report: MmReport, pick: Callable[[Timed], tuple[float, Samples]]) -> Iterator[str]:
    yield from _columns(
        report,
        "shape",
        {
            str(result.shape): {name: _time(*pick(timed)) for name, timed in result.timed.items()}
            for result in report.shapes
        },
    )


def _columns(report: MmReport, first: str, rows: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield *rows* of cells by column, with as many columns beside each other as 80 hold."""
    width = max(map(len, (first, *rows)))
    left = list(report.columns)
    while left:
        shown: list[str] = []
        room = TEXT_WIDTH - width
        while left:
            parts = left[0].split("-", 1)
            cells = (row.get(left[0], ABSENT) for row in rows.values())
            room -= 1 + max(map(len, (*parts, *cells)))
            if room < 0 and shown:
                break
            shown.append(left.pop(0))
        heads = [name.partition("-") for name in shown]
        lines = [[name, *(row.get(n, ABSENT) for n in shown)] for name, row in rows.items()]
        second = [["", *(backend for _, _, backend in heads)]] if any(h[2] for h in heads) else []
        head = (first, *(family for family, _, _ in heads))
        yield from grid(head, [*second, *lines], texts=1, gap=1)


def _means(report: MmReport) -> Iterator[str]:
    """Yield the means of each model, and of all shapes."""
    names: list[str | None] = [*report.models, None]
    yield from _columns(
        report,
        "model",
        {
            name or "all": {n: times(report.mean_speedup(n, name)) for n in report.columns}
            for name in names
        },
    )


def _host(report: MmReport) -> Iterator[str]:
    """Yield the host's time of a call of each column by part, medians over the shapes."""
    rows = [
        [column, *(digits(report.host_us(column, part)) for part in HOST_PARTS)]
        for column in report.columns
    ]
    last = "kernel" if report.processor == "CPU" else "launch"
    head = ["column", *(last if part == "launch" else part for part in HOST_PARTS)]
    yield from grid(head, rows, texts=1)


def _changes(report: MmReport, against: Against) -> Iterator[str]:
    """Yield the times over those of *against*, with a mark where the intervals are apart."""
    where = against.provenance
    yield from fold(
        f"device time over that of {where['device']}, torch {where['torch']}, {where['date']}; "
        "* where the 95 % intervals are apart",
        indent=2,
    )
    for difference in against.differences(report):
        yield from fold(f"not the same: {difference}", indent=2)
    cells: dict[str, dict[str, str]] = {str(result.shape): {} for result in report.shapes}
    means: dict[str, str] = {}
    for column in report.columns:
        for shape, change in against.changes(report, column).items():
            cells[str(shape)][column] = f"{digits(change.ratio)}{'*' if change.is_clear else ' '}"
        if (mean := against.mean(report, column)) is not None:
            means[column] = f"{digits(mean)} "
    yield from _columns(report, "shape", {**cells, "mean": means})


def _time(median: float, samples: Samples) -> str:
    low, high = samples.interval
    return f"{shown_us(median)} ±{shown_us(max(median - low, high - median, 0.0), median)}"


def _standings(report: MmReport) -> Iterator[str]:
    head = ("shape", "fastest", "TFLOP/s", "GB/s", "peak", "ratio", "interval", "")
    rows = []
    for result in report.shapes:
        row = [str(result.shape)]
        if result.fastest is not None:
            timed = result.timed[result.fastest]
            rates = report.rates(result.shape, result.fastest, timed)
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
    if report.unstable:
        yield from fold(
            f"table: its row is unstable at {', '.join(map(str, report.unstable))}: the times of "
            "the build could not be believed, so the row has the library's kernel",
            indent=2,
        )
    if report.peaks is not None:
        tf32 = ["tf32"] if TF32_COLUMN in report.columns else []
        yield spell_peaks(report.peaks, [report.dtype, *tf32])
    for name in report.over_peak:
        yield f"{name}: cannot be right, faster than the measured peak"
    for name in COLUMNS:
        dropped = {result.shape: result.dropped.get(name, "") for result in report.shapes}
        yield from _reasons(f"no {name}", dropped)
        split = {
            result.shape: result.timed[name].host.reason
            for result in report.shapes
            if name in result.timed
        }
        yield from _reasons(f"no host time of {name}", split)


def _reasons(what: str, reasons: Mapping[Shape, str]) -> Iterator[str]:
    """Yield *what* is missing at which shapes, and why; shapes with an empty reason have it."""
    for reason in dict.fromkeys(filter(None, reasons.values())):
        shapes = [str(shape) for shape, own in reasons.items() if own == reason]
        where = "" if len(shapes) == len(reasons) else f" at {', '.join(shapes)}"
        yield from fold(f"{what}{where}: {reason}", indent=2)
