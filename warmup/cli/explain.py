"""`warmup explain`: the command. `explain_render` prints its report, `explain_chart` draws it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from warmup.buckets.histogram import read_histogram
from warmup.cli import options
from warmup.cli.output import print_report, say
from warmup.core.assumed_device import ASSUMED_DEVICES
from warmup.core.files import write_output


def explain(
    *,
    model: options.Model,
    seqlens: options.Seqlens = None,
    dims: options.Dims = None,
    inputs: options.InputsOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.Dtype = None,
    mode: Annotated[
        str, typer.Option(help="The torch.compile mode: default or max-autotune.")
    ] = "default",
    grad: Annotated[
        bool | None, typer.Option(help="Only with gradients, or only without; default both.")
    ] = None,
    largest: Annotated[
        int | None, typer.Option(min=1, help="Largest size to cover; default the largest given.")
    ] = None,
    max_compiles: Annotated[
        int, typer.Option(min=2, help="The most sizes that are compiled for a dim.")
    ] = 16,
    assume: Annotated[
        str | None,
        typer.Option(help=f"Explain a GPU that is not here: {', '.join(ASSUMED_DEVICES)}."),
    ] = None,
    histogram: Annotated[
        str | None,
        typer.Option(help="File with the sizes that are served, as in suggest; - is stdin."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A table of the device: prices as its rows have them.")
    ] = None,
    device_model: options.DeviceModelFile = None,
    svg: Annotated[Path | None, typer.Option(help="SVG file to draw the ranges into.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Name the sizes at which torch.compile recompiles, and why.

    Nothing is tuned, timed or built.
    """
    from warmup.bench.charts.draw import check_matplotlib, svg_of
    from warmup.cli.explain_chart import chart_of
    from warmup.cli.explain_render import document, spell
    from warmup.diagnostics.recompiles.explain import explain as find_ranges

    if svg is not None:
        check_matplotlib()  # now, and not after all the compiling
    found = find_ranges(
        model,
        seqlens=seqlens,
        dims=dims,
        inputs=tuple(inputs or ()),
        device=device,
        dtype=dtype,
        mode=mode,
        grad=grad,
        largest=largest,
        max_compiles=max_compiles,
        assume=assume,
        histogram=read_histogram(sys.stdin.buffer) if histogram == "-" else histogram,
        table=table,
        device_model=device_model,
    )
    for assumption in found.assumptions:
        say(assumption)
    if svg is not None:
        write_output(svg, svg_of(chart_of(found)), "--svg")
    print_report(found, spell, document, as_json=as_json)
