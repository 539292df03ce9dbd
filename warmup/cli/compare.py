"""`warmup compare`: one model, started and served in several ways. A report on stdout, and files.

Exit code 1 when a variant that serves from a table failed or disagrees with eager.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from warmup.cli.arguments import DEVICE, DIMS, DTYPE, INPUTS, JSON, MODEL, SEQLENS
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.signals import interruptible
from warmup.core.errors import SettingsError
from warmup.core.method import L2, Launch


def compare(
    model: Annotated[str, MODEL],
    *,
    seqlens: Annotated[str | None, SEQLENS] = None,
    dims: Annotated[list[str] | None, DIMS] = None,
    inputs: Annotated[list[str] | None, INPUTS] = None,
    dtype: Annotated[str | None, DTYPE] = None,
    device: Annotated[str, DEVICE] = "auto",
    table: Annotated[
        Path | None, typer.Option(help="The table; without it, the one `install` would find.")
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Any of eager,default,max-autotune,table,table-padded; the first two always run. "
            "Without it all do, the last where the table pads weights."
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Another model, NAME=MODEL or NAME=MODEL+table. Repeatable."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each call is timed; 6 or more.")] = 30,
    launch: Annotated[
        Launch, typer.Option(help="How timed calls are launched: eager or cudagraph.")
    ] = Launch.EAGER,
    l2: Annotated[
        L2, typer.Option(help="What timed calls find in the L2: warm or cold.")
    ] = L2.WARM,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a variant may take for one step.")
    ] = 1800.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for compare.json, charts and logs.")
    ] = None,
    charts: Annotated[
        bool | None, typer.Option(help="Draw charts into --out; by default where there is one.")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Start and serve a model eagerly, compiled, tuned and from a table, and compare."""
    draws = out is not None if charts is None else charts
    if draws and out is None:
        raise SettingsError("--charts has no folder to draw into", "name one with --out")
    if draws and importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(
            "charts are drawn by matplotlib, which is not installed here",
            "install it, or give --no-charts",
        )
    from warmup.bench.compare.compare import compare as run
    from warmup.cli.compare_progress import CompareProgress
    from warmup.cli.compare_render import document, print_comparison, print_document, write_document

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
        write_document(report, out / "compare.json")
    if as_json:
        print_document(document(report))
    else:
        print_comparison(report)
    if draws and out is not None:
        from warmup.bench.charts.draw import draw_all
        from warmup.bench.compare.charts import charts_of

        draw_all(charts_of(document(report)), out, "compare")
    if report.failed:
        sys.stderr.write(f"compare failed on: {', '.join(report.failed)}\n")
        raise typer.Exit(EXIT_FOUND)
