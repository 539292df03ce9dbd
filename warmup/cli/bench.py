"""`warmup bench`: the command for GEMMs, layers and pads, its reports as text, its files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from warmup.cli import options
from warmup.cli.output import (
    ABSENT,
    complain,
    digits,
    fold,
    grid,
    percent,
    print_report,
    say,
    spell_peaks,
    times,
    timing,
    versions,
)
from warmup.cli.streams import EXIT_FOUND, interruptible
from warmup.core.errors import SettingsError

if TYPE_CHECKING:
    from warmup.bench.cells import BenchReport, BenchRequest, Cell


def bench(
    benchmark: Annotated[
        Literal["mm", "layers"],
        typer.Argument(metavar="mm|layers", help="Plain GEMMs, or layers."),
    ],
    layers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LAYER",
            help="Of layers: rmsnorm, softmax, cross-entropy, swiglu, layernorm (default all), or "
            "your own, FILE.py:Class.",
        ),
    ] = None,
    *,
    shapes: Annotated[
        str | None, typer.Option(help="MxKxN of mm, ROWSxCOLUMNS of layers; default usual ones.")
    ] = None,
    backends: Annotated[
        str | None, typer.Option(help="Backends beside eager; default all.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bf16, f16 or f32; default f16, of layers bf16.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of timing; default 50, of layers 30.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="The table to serve; default a table that is built first.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for JSON and charts.")] = None,
    device: options.DeviceOption = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Time plain GEMMs or layers on several backends.

    They are timed eager, compiled, from a table and by the libraries that are installed.
    """
    if layers and benchmark != "layers":
        raise typer.BadParameter(f"bench {benchmark} takes no layers: {', '.join(layers)}")
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    from warmup.bench import backends as running
    from warmup.bench.cells import BenchRequest

    is_mm = benchmark == "mm"
    request = BenchRequest(
        benchmark=benchmark,
        layers=layers or (),
        shapes=shapes,
        backends=backends,
        dtype=dtype or ("f16" if is_mm else "bf16"),
        rounds=rounds or (50 if is_mm else 30),
        table=table,
        out=out,
        device=device,
    )
    run_bench(running.bench, request, as_json=as_json)


def run_bench(
    time_all: Callable[..., BenchReport], request: BenchRequest, *, as_json: bool
) -> None:
    """Call *time_all* for *request*; write a document after each shape, and charts at the end.

    The report is printed, that of the finished shapes where *time_all* is interrupted or fails.
    """
    from warmup.bench.cells import chart_of, document, draw, write_json

    kept: list[BenchReport] = []
    out, name = request.out, f"bench-{request.benchmark}"

    def keep(report: BenchReport) -> None:
        kept[:] = [report]
        if out is not None:
            write_json(document(report), out / f"{name}.json")

    def stop() -> None:
        where = "" if out is None else f", and in {out}"
        say(f"interrupted: {f'finished shapes are printed{where}' if kept else 'no shape was'}")

    with interruptible(stop):
        try:
            report = time_all(request, say=say, keep=keep)
        finally:
            for finished in kept:
                print_report(finished, spell, document, as_json=as_json)
    if out is not None:
        say(f"wrote {out / f'{name}.json'}")
        try:
            for layer in report.layers:
                file = out / (f"{name}.png" if layer == "mm" else f"{name}-{layer}.png")
                draw(chart_of(report, layer), file)
                say(f"wrote {file}")
        except SettingsError as error:  # without matplotlib; the document is there
            say(f"no chart: {error}")
    if not report.is_right:
        complain("a backend's results are wrong, or none was compared: see the reasons above")
        raise typer.Exit(EXIT_FOUND)


def spell(report: BenchReport) -> Iterator[str]:
    where = report.provenance
    origin = f"{where['device']}, {versions(where['torch'], where['triton'])}, {where['date']}"
    yield from fold(origin, indent=2)
    yield (
        f"{report.dtype}, {timing(report.launch, report.l2)}, medians of {report.rounds} rounds "
        "with 95 % intervals"
    )
    if report.peaks is not None:
        yield spell_peaks(report.peaks, [report.dtype] if report.is_arithmetic else ())
    if report.table is not None:
        hits = ", ".join(f"{layer} {count}" for layer, count in report.hits.items())
        yield from fold(f"table {report.table[:16]}: hits {hits}, 0 misses; forward only", indent=2)
    for backend, version in report.versions.items():
        yield f"{backend}: version {version}"
    for backend, reason in report.missing.items():
        yield from fold(f"{backend}: {reason}", indent=2)
    for layer in report.layers:
        yield ""
        yield layer
        yield from _table(report, [cell for cell in report.cells if cell.layer == layer])
    yield ""
    yield "speed-up over eager: geometric mean, 95 % interval (number of shapes)"
    for row in (*report.layers, None) if len(report.layers) > 1 else (None,):
        for step in report.steps:
            means = [
                f"{backend} {times(mean['geomean'])} "
                f"{mean['interval'][0]:.2f}-{mean['interval'][1]:.2f} ({mean['shapes']})"
                for backend in report.backends
                if (mean := report.mean_speedup(backend, step, row)) is not None
            ]
            head = f"{row or 'all':14}{step.short:9}"
            yield from fold(
                ", ".join(means) or "no verdict: times of eager are missing or scatter too far",
                head,
            )


def _table(report: BenchReport, cells: list[Cell]) -> Iterator[str]:
    head = ("shape", "pass", "backend", "us", "±%", report.unit, "peak", "speed-up", "error")
    rows, notes, before = [], [], None
    for cell in cells:
        place = (cell.shape, cell.step.short)
        numbers = ["failed", *[ABSENT] * 5]
        if cell.samples is not None:
            median, (low, high) = cell.samples.median, cell.samples.interval
            numbers = [
                digits(median),
                f"{50 * (high - low) / median:.1f}",
                digits(report.rate(cell)),
                percent(report.share(cell)),
                times(report.speedup(cell)),
                ABSENT if cell.error is None else f"{cell.error:.0e}",
            ]
        rows.append([*(place if place != before else ("", "")), cell.backend, *numbers])
        if cell.reason:
            notes.append(f"{' '.join(place)} {cell.backend}: {cell.reason}")
        ratio = report.table_ratio(cell.place) if place != before else None
        if ratio is not None and ratio["ratio"] is not None:
            notes.append(
                f"{' '.join(place)} table: {ratio['ratio']:.3f} of the time of {ratio['best']}, "
                f"{ratio['verdict']}"
            )
        before = place
    yield from grid(head, rows, texts=3, gap=1)
    for note in notes:
        yield from fold(note, indent=2)
