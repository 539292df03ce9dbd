"""`warmup explain`: the command. `explain_render` prints its report."""

from __future__ import annotations

from typing import Annotated

import typer

from warmup.cli import options
from warmup.cli.output import print_report, say
from warmup.core.assumed_device import ASSUMED_DEVICES


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
    as_json: options.AsJson = False,
) -> None:
    """Name the sizes at which torch.compile recompiles, and why.

    Nothing is tuned, timed or built.
    """
    from warmup.cli.explain_render import document, spell
    from warmup.diagnostics.explain import explain as find_ranges

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
    )
    for assumption in found.assumptions:
        say(assumption)
    print_report(found, spell, document, as_json=as_json)
