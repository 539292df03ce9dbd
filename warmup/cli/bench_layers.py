"""`warmup bench layers`: the command, and its report as text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warmup.cli import options
from warmup.cli.output import ABSENT, digits, fold, grid, percent, spell_peaks, times
from warmup.core.method import L2, Launch

if TYPE_CHECKING:
    from warmup.bench.layers.report import LayerCell, LayersReport

_HEAD: Final = ("shape", "pass", "backend", "us", "±%", "GB/s", "peak", "speed-up", "error")
_PASS_NAMES: Final = {"forward": "forward", "forward+backward": "fwd+bwd"}


def layers(
    *,
    layers: Annotated[
        str | None,
        typer.Option(help="Any of rmsnorm,softmax,cross-entropy,swiglu,layernorm; default all."),
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(
            help="Any of eager,compiled,custom,liger,quack,helion; eager always runs. Default all."
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(help="ROWSxCOLUMNS: 4096x1024,8192x4096; default the layer's usual shapes."),
    ] = None,
    dtype: options.OperandDtype = "bf16",
    rounds: options.BenchRounds = 30,
    launch: options.TimedLaunch = Launch.CUDAGRAPH,
    l2: options.TimedL2 = L2.COLD,
    backward: Annotated[
        bool, typer.Option(help="Time forward and backward together, besides forward.")
    ] = True,
    out: options.ResultFolder = None,
    device: options.DeviceOption = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Time norms, softmax, cross-entropy and SwiGLU on several backends.

    The backends are eager PyTorch, inductor and kernel libraries.
    """
    from warmup.bench.layers.files import LAYERS_STEM, document, draw_charts
    from warmup.bench.layers.run import bench_layers
    from warmup.cli.bench_results import BenchResults

    bench = partial(
        bench_layers,
        layers=layers,
        backends=backends,
        shapes=shapes,
        dtype=dtype,
        rounds=rounds,
        launch=launch,
        l2=l2,
        backward=backward,
        device=device,
    )
    BenchResults(out, LAYERS_STEM, document, draw_charts).run(bench, spell, as_json=as_json)


def spell(report: LayersReport) -> Iterator[str]:
    """Yield lines of at most 80 columns: a table for each layer, then the means."""
    from warmup.cli.bench_results import spell_origin

    yield from spell_origin(report)
    if report.peaks is not None:
        yield spell_peaks(report.peaks, ())
    settings = ", ".join(f"{name}={value}" for name, value in report.options.items())
    yield from fold(f"custom: inductor with {settings}", indent=2)
    for backend, version in report.versions.items():
        yield f"{backend}: version {version}"
    for backend, reason in report.missing.items():
        yield from fold(f"{backend}: {reason}", indent=2)
    for layer in report.layers:
        yield ""
        yield layer
        yield from _table(report, layer)
    yield ""
    if report.too_busy is not None:
        yield from fold(report.too_busy, indent=2)
    yield "speed-up over eager, geometric mean (number of shapes)"
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
    yield from grid(_HEAD, rows, texts=3)
    for reason in reasons:
        yield from fold(reason, indent=2)


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
            f"{backend} {times(mean[0])} ({mean[1]})"
            for backend in report.backends
            if (mean := report.mean_speedup(backend, step, layer)) is not None
        ]
        head = f"{layer or 'all':14}{_PASS_NAMES[step]:9}"
        yield from fold(", ".join(means) or ABSENT, head)
