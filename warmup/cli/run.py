"""`warmup run`: serve from a table without touching the server's code."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from warmup.table.lookup import Uncovered

# What follows the first word that is no option belongs to the command, `--` or not.
CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False}


class RunOnMiss(StrEnum):
    """What a served process does on a miss."""

    FALLBACK = "fallback"
    STRICT = "strict"


def run(
    command: Annotated[list[str], typer.Argument(help="What to run, with its arguments.")],
    *,
    table: Annotated[Path, typer.Option(help="The table to install.")],
    on_miss: Annotated[
        RunOnMiss, typer.Option(help="The library kernel, counted; or an error.")
    ] = RunOnMiss.FALLBACK,
    uncovered: Annotated[
        Uncovered, typer.Option(help="Count other measurements, or refuse them.")
    ] = Uncovered.COUNT,
    audit_log: Annotated[
        Path | None, typer.Option(help="Append every event to this file; default a temporary one.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="What `warmup build --bundle` wrote: code, to be trusted.")
    ] = None,
) -> None:
    """Run a command with a table installed in every Python process it starts."""
    from warmup.serving.run import run as verb

    report = verb(
        command,
        table=table,
        on_miss=on_miss,
        uncovered=uncovered,
        audit_log=audit_log,
        bundle=bundle,
    )
    sys.stderr.write(f"{report}\n")
    raise typer.Exit(report.exit_code)
