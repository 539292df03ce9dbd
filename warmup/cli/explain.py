"""`warmup explain`: the command. What it prints is in `explain_render` and `explain_chart`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warmup.cli.arguments import DEVICE, DIMS, DTYPE, INPUTS, JSON, MODEL, SEQLENS


def explain(
    *,
    model: Annotated[str, MODEL],
    seqlens: Annotated[str | None, SEQLENS] = None,
    dims: Annotated[list[str] | None, DIMS] = None,
    inputs: Annotated[list[str] | None, INPUTS] = None,
    device: Annotated[str, DEVICE] = "auto",
    dtype: Annotated[str | None, DTYPE] = None,
    mode: Annotated[str, typer.Option(help="default or max-autotune.")] = "default",
    grad: Annotated[
        bool | None,
        typer.Option(help="Only with gradients, or only without; default both."),
    ] = None,
    largest: Annotated[
        int | None, typer.Option(min=1, help="Cover sizes up to this; default the largest given.")
    ] = None,
    max_compiles: Annotated[
        int, typer.Option(min=2, help="The most sizes that are tried for one dim.")
    ] = 16,
    svg: Annotated[Path | None, typer.Option(help="Draw the ranges there.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say at which sizes torch.compile makes another artifact, and which source line asked."""
    from warmup.bench.charts.draw import check_matplotlib, svg_of
    from warmup.cli.audits import put
    from warmup.cli.explain_chart import chart_of
    from warmup.cli.explain_render import print_explanation, print_explanation_json
    from warmup.diagnostics.recompiles.explain import explain as run

    if svg is not None:
        check_matplotlib()  # now, and not after all the compiling
    found = run(
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
    )
    if svg is not None:
        put(svg, svg_of(chart_of(found)), "--svg")
    (print_explanation_json if as_json else print_explanation)(found)
