"""`warmup compare`: one model, started and served in several ways. A report on stdout, and files.

Exit code 1 when a variant that serves from a table failed or disagrees with eager.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import complain, print_report
from warmup.cli.signals import interruptible
from warmup.core.errors import SettingsError
from warmup.core.method import L2, Launch


def compare(
    model: options.Model,
    *,
    seqlens: options.Seqlens = None,
    dims: options.Dims = None,
    inputs: options.InputsOption = None,
    dtype: options.Dtype = None,
    device: options.DeviceOption = "auto",
    table: Annotated[
        Path | None, typer.Option(help="The table to serve; default the table that install finds.")
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Any of eager,default,max-autotune,table,table-padded; the "
            "first two always run. Default all; table-padded where the table pads weights."
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL",
            help="Another model to time: NAME=MODEL or NAME=MODEL+table. Repeatable.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help=f"{options.ROUNDS_HELP} 6 or more.")] = 30,
    launch: options.TimedLaunch = Launch.EAGER,
    l2: options.TimedL2 = L2.WARM,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a step of a variant has failed.")
    ] = 1800.0,
    out: options.ResultFolder = None,
    charts: Annotated[
        bool | None,
        typer.Option(help="Draw the speeds as PNG into --out; default where --out is given."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Time one model eager, compiled, max-autotuned and from a table.

    Each variant starts in a process of its own, with empty caches.
    """
    draws = out is not None if charts is None else charts
    if draws and out is None:
        raise SettingsError("--charts has no folder to draw into", "name one with --out")
    if draws and importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(
            "charts are drawn by matplotlib, which is not installed here",
            "install it, or give --no-charts",
        )
    from warmup.bench.cells import write_json
    from warmup.bench.compare.compare import compare as run
    from warmup.cli.compare_render import document, spell
    from warmup.cli.progress import CompareProgress

    with CompareProgress() as progress, interruptible():
        report = run(
            model,
            seqlens=seqlens,
            dims=dims,
            inputs=tuple(inputs or ()),
            device=device,
            dtype=dtype,
            table=table,
            variants=variants,
            also=tuple(also or ()),
            rounds=rounds,
            launch=launch,
            l2=l2,
            out=out,
            timeout_s=timeout,
            observer=progress,
        )
    if out is not None:
        write_json(document(report), out / "compare.json")
    print_report(report, spell, document, as_json=as_json)
    if draws and out is not None:
        from warmup.bench.charts import draw
        from warmup.bench.compare.charts import chart_of

        draw(chart_of(document(report)), out / "compare-speed")
    if report.failed:
        complain(f"compare failed on: {', '.join(report.failed)}")
        raise typer.Exit(EXIT_FOUND)
