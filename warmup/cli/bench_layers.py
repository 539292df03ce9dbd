"""`warmup bench layers`: the command, and its report as text or JSON on stdout."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warmup.cli.arguments import DEVICE, JSON, L2_CACHE, LAUNCH
from warmup.cli.signals import interruptible
from warmup.core.errors import printable
from warmup.core.method import L2, Launch

if TYPE_CHECKING:
    from warmup.bench.layers.report import LayerCell, LayersReport

_WIDTH: Final = 80
_WHOLE: Final = 100  # from here on without decimals
_HEAD: Final = (
    f"{'shape':12}{'pass':9}{'backend':9}{'us':>10}{'±%':>7}{'GB/s':>7}{'peak':>6}"
    f"{'speed-up':>10}{'error':>8}"
)
_SHORT: Final = {"forward": "forward", "forward+backward": "fwd+bwd"}


def layers(
    *,
    layers: Annotated[
        str | None,
        typer.Option(help="Of rmsnorm, softmax, cross-entropy, swiglu, layernorm; default all."),
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(help="Of eager, compiled, custom, liger, quack, helion; eager always runs."),
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(help="ROWSxCOLUMNS,...; each layer's usual ones without this.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bf16, f16 or f32.")] = "bf16",
    rounds: Annotated[int, typer.Option(min=1, help="Times taken of each, in turn.")] = 30,
    launch: Annotated[Launch, LAUNCH] = Launch.CUDAGRAPH,
    l2: Annotated[L2, L2_CACHE] = L2.COLD,
    backward: Annotated[bool, typer.Option(help="Time forward and backward together too.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Write bench-layers.json and a chart for each layer there.")
    ] = None,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time norms, softmax, cross-entropy and SwiGLU: eager, compiled, and kernel libraries."""
    from warmup.bench.layers.files import LAYERS_STEM, document, draw_charts
    from warmup.bench.layers.run import bench_layers
    from warmup.cli.bench_results import BenchResults, say

    results = BenchResults(out, LAYERS_STEM, document, draw_charts)
    with interruptible(results.interrupted):
        report = bench_layers(
            layers=layers,
            backends=backends,
            shapes=shapes,
            dtype=dtype,
            rounds=rounds,
            launch=launch,
            l2=l2,
            backward=backward,
            device=device,
            say=say,
            keep=results.keep,
        )
    if as_json:
        json.dump(document(report), sys.stdout, indent=2, sort_keys=True)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(spell(report))
    results.finish(report)


def spell(report: LayersReport) -> str:
    """Return *report* as text of at most 80 columns: a table for each layer, then the means."""
    where = report.provenance
    lines = _fold(
        f"{where['device']}, torch {where['torch']}, Triton {where['triton']}, {report.dtype}, "
        f"{report.launch}, {report.l2} L2, medians of {report.rounds} rounds, {where['date']}"
    )
    if report.peaks is not None:
        lines.append(f"measured peak bandwidth: {report.peaks.gbps:.0f} GB/s")
    lines += _fold(f"custom: {', '.join(f'{k}={v}' for k, v in report.options.items())}")
    for backend, version in report.versions.items():
        lines.append(f"{backend}: version {version}")
    for backend, reason in report.missing.items():
        lines += _fold(f"{backend}: {reason}")
    for layer in report.layers:
        lines += ["", layer, _HEAD, *_table(report, layer)]
    lines += ["", "speed-up over eager, geometric means (of so many shapes)"]
    for row in (*report.layers, None):
        lines += _means(report, row)
    return "".join(f"{printable(line)}\n" for line in lines)


def _table(report: LayersReport, layer: str) -> list[str]:
    """Return a line for each cell, and after them why cells have no times."""
    lines, reasons, before = [], [], ("", "")
    for cell in report.of_layer(layer):
        here = (str(cell.shape), _SHORT[cell.step])
        shape, step = here if here != before else ("", "")
        before = here
        lines.append(f"{shape:12}{step:9}{cell.backend:9}{_numbers(report, cell)}")
        if cell.reason:
            reasons.append(f"{here[0]} {here[1]} {cell.backend}: {cell.reason}")
    return [*lines, *(line for reason in reasons for line in _fold(reason))]


def _numbers(report: LayersReport, cell: LayerCell) -> str:
    if cell.samples is None or cell.gbps is None:
        return f"{'failed, see below':>16}"
    median, (low, high) = cell.samples.median, cell.samples.interval
    share, ratio = report.share(cell), report.speedup(cell)
    error = "-" if cell.error is None else f"{cell.error:.0e}"
    return (
        f"{median:10.1f}{_shown(50 * (high - low) / median):>7}{_shown(cell.gbps):>7}"
        f"{'-' if share is None else f'{share:.0%}':>6}"
        f"{'-' if ratio is None else f'{ratio:.2f}x':>10}{error:>8}"
    )


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= _WHOLE else f"{value:.1f}"


def _means(report: LayersReport, layer: str | None) -> list[str]:
    lines: list[str] = []
    for step in report.steps:
        found = [
            (backend, mean)
            for backend in report.backends
            if (mean := report.mean_speedup(backend, step, layer)) is not None
        ]
        said = ", ".join(f"{name} {mean:.2f}x ({count})" for name, (mean, count) in found)
        lines += _fold(f"{layer or 'all':14}{_SHORT[step]:9}{said or '-'}", indent=23)
    return lines


def _fold(text: str, indent: int = 2) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
