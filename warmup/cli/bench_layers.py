"""`warmup bench layers`: the command, and its report as text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import (
    ABSENT,
    TEXT_WIDTH,
    complain,
    digits,
    fold,
    grid,
    percent,
    spell_peaks,
    times,
)
from warmup.core.errors import SettingsError
from warmup.core.method import L2, Launch

if TYPE_CHECKING:
    from warmup.bench.layers.report import LayerCell, LayersReport

_HEAD: Final = ("shape", "pass", "backend", "us", "±%", "GB/s", "peak", "speed-up", "error")
_PASS_NAMES: Final = {"forward": "forward", "forward+backward": "fwd+bwd"}
_ACCURACY: Final = "accuracy"


def layers(
    *,
    layers: Annotated[
        str | None,
        typer.Option(help="Any of rmsnorm,softmax,cross-entropy,swiglu,layernorm; default all."),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="A layer of your own: FILE.py:Class. Repeatable."),
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(
            help="Any of eager,compiled,custom,table,triton,liger,quack,helion, of the names of "
            "--custom and of the methods of --layer; eager always runs. Default all."
        ),
    ] = None,
    custom: Annotated[
        list[str] | None,
        typer.Option(
            help="Options of inductor, as a backend NAME:option=value,option=value in place of "
            "'custom'. Repeatable."
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(help="ROWSxCOLUMNS: 4096x1024,8192x4096; default the layer's usual shapes."),
    ] = None,
    dtype: options.OperandDtype = "bf16",
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative L2 error of outputs and gradients; default by dtype."),
    ] = None,
    rounds: options.BenchRounds = 30,
    launch: options.TimedLaunch = Launch.CUDAGRAPH,
    l2: options.TimedL2 = L2.COLD,
    backward: Annotated[
        bool, typer.Option(help="Time forward and backward together, besides forward.")
    ] = True,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit with code 1 on accuracy: a backend's outputs are wrong, or no output was "
            "compared."
        ),
    ] = None,
    out: options.ResultFolder = None,
    charts: options.BenchCharts = True,
    device: options.DeviceOption = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Time norms, softmax, cross-entropy, SwiGLU or your own layers on several backends.

    The backends are eager PyTorch, inductor, a table, Triton kernels and kernel libraries.
    """
    from warmup.bench.layers.files import LAYERS_STEM, document, draw_charts
    from warmup.bench.layers.run import bench_layers
    from warmup.cli.bench_results import BenchResults

    if fail_on not in (None, _ACCURACY):
        raise SettingsError(f"--fail-on {fail_on!r} is unknown", f"use {_ACCURACY}")
    bench = partial(
        bench_layers,
        layers=layers,
        own=layer or (),
        backends=backends,
        customs=custom or (),
        shapes=shapes,
        dtype=dtype,
        tolerance=tolerance,
        rounds=rounds,
        launch=launch,
        l2=l2,
        backward=backward,
        out=out,
        device=device,
    )
    results = BenchResults(out, LAYERS_STEM, document, draw_charts, charts)
    report = results.run(bench, spell, as_json=as_json)
    if fail_on == _ACCURACY and not report.is_compared:
        complain(
            f"--fail-on {_ACCURACY}: no output of a backend was compared with eager in float32; "
            "the report has the reasons"
        )
    if fail_on == _ACCURACY and (report.wrong or not report.is_compared):
        raise typer.Exit(EXIT_FOUND)


def spell(report: LayersReport) -> Iterator[str]:
    """Yield lines of at most 80 columns: a table for each layer, then the means."""
    from warmup.cli.bench_results import spell_origin

    yield from spell_origin(report)
    if report.peaks is not None:
        yield spell_peaks(report.peaks, ())
    for name, own in report.options.items():
        settings = ", ".join(f"{option}={value}" for option, value in own.items())
        yield from fold(f"{name}: inductor with {settings}", indent=2)
    if report.table is not None:
        hits = ", ".join(f"{layer} {count}" for layer, count in report.hits.items())
        yield from fold(f"table {report.table[:16]}: hits {hits}; forward only", indent=2)
    for backend, version in report.versions.items():
        yield f"{backend}: version {version}"
    for backend, reason in report.missing.items():
        yield from fold(f"{backend}: {reason}", indent=2)
    for layer in report.layers:
        yield ""
        yield from fold(f"{layer}{_intensity(report, layer)}", indent=2)
        yield from _table(report, layer)
    yield ""
    if report.too_busy is not None:
        yield from fold(report.too_busy, indent=2)
    yield "speed-up over eager: geometric mean, 95 % interval (number of shapes)"
    for row in (*report.layers, None):
        yield from _means(report, row)


def _table(report: LayersReport, layer: str) -> Iterator[str]:
    """Yield a row for each cell, and after them why cells have no times."""
    rows, reasons, before = [], [], ("", "")
    for cell in report.of_layer(layer):
        place = (str(cell.shape), _PASS_NAMES[cell.step])
        rows.append(
            [*(place if place != before else ("", "")), cell.backend, *_numbers(report, cell)]
        )
        before = place
        if cell.reason:
            reasons.append(f"{' '.join(place)} {cell.backend}: {cell.reason}")
    yield from grid(_HEAD, rows, texts=3, gap=2 if _is_narrow(rows) else 1)
    for reason in reasons:
        yield from fold(reason, indent=2)


def _is_narrow(rows: list[list[str]]) -> bool:
    widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1) <= TEXT_WIDTH


def _intensity(report: LayersReport, layer: str) -> str:
    """Return the FLOPs per byte of a layer by pass; empty where the layer does not say."""
    texts = []
    for step in report.steps:
        cells = [cell for cell in report.of_layer(layer) if cell.step == step]
        found = [cell.flops_per_byte for cell in cells if cell.flops_per_byte]
        if found:
            span = dict.fromkeys((digits(min(found)), digits(max(found))))
            texts.append(f"{_PASS_NAMES[step]} {' to '.join(span)}")
    return f": FLOPs per byte {', '.join(texts)}" if texts else ""


def _ends(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f}-{interval[1]:.2f}"


def _numbers(report: LayersReport, cell: LayerCell) -> tuple[str, ...]:
    if cell.samples is None:
        return ("failed", *[ABSENT] * 5)
    median, (low, high) = cell.samples.median, cell.samples.interval
    return (
        digits(median),
        f"{50 * (high - low) / median:.1f}",
        digits(cell.gbps),
        percent(report.share(cell)),
        times(report.speedup(cell)),
        ABSENT if cell.error is None else f"{cell.error:.0e}",
    )


def _means(report: LayersReport, layer: str | None) -> Iterator[str]:
    for step in report.steps:
        means = [
            f"{backend} {times(mean.mean)} {_ends(mean.interval)} ({mean.shapes})"
            for backend in report.backends
            if (mean := report.mean_speedup(backend, step, layer)) is not None
        ]
        head = f"{layer or 'all':14}{_PASS_NAMES[step]:9}"
        yield from fold(", ".join(means) or ABSENT, head)
