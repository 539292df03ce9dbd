"""`warmup run`: serve from a table without touching the server's code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from warmup.cli import options
from warmup.cli.output import MEANINGS, complain, meanings, say
from warmup.cli.streams import EXIT_FOUND, EXIT_MISMATCH
from warmup.core.errors import TableMismatchError
from warmup.table.schema import OnMissName, Uncovered

# What follows the first word that is no option belongs to the command, `--` or not.
CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False}
_PAGE: Final = "docs/how-to/run-without-code-changes.md"


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command to run, with its arguments.")
    ],
    *,
    table: Annotated[Path, typer.Option(help="The table file to install.")],
    on_miss: Annotated[OnMissName, typer.Option(help=options.ON_MISS_HELP)] = "fallback",
    uncovered: Annotated[
        Uncovered, typer.Option(help="Decisions of no row kind: library, measure or forbid.")
    ] = Uncovered.LIBRARY,
    audit_log: Annotated[
        Path | None, typer.Option(help="File to append events to; default WARMUP_AUDIT_LOG.")
    ] = None,
    bundle: options.Bundle = None,
    fail_on: options.FailOn = None,
    allow_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-mismatch",
            help="Install a table for another device or runtime all the same: each lookup misses.",
        ),
    ] = False,
    freezing: options.Freezing = None,
) -> None:
    """Run a command with a table installed in its Python processes."""
    from warmup.serving.run import run as run_command

    wanted = options.parse_failures(fail_on)
    try:
        report = run_command(
            command,
            table=table,
            on_miss=on_miss,
            uncovered=uncovered,
            audit_log=audit_log,
            bundle=bundle,
            allow_mismatch=allow_mismatch,
            freezing=freezing,
        )
    except TableMismatchError as error:
        error.exit_code = EXIT_MISMATCH
        raise
    failed = report.audit.failures(wanted)
    for clause in report.audit.advice:
        say(f"warmup run: {clause}")
    rare = {"foreign": report.audit.foreign, "mismatch": report.audit.mismatch}
    words = [word for word in MEANINGS if rare.get(word, True)]
    say(f"warmup run: {meanings(*words, page=_PAGE)}")
    if failed:
        complain(f"warmup run: failed on: {', '.join(failed)}")
    say(str(report))
    is_refused = on_miss == "strict" and report.audit.mismatch
    own = EXIT_MISMATCH if is_refused else EXIT_FOUND if failed else 0
    raise typer.Exit(report.exit_code or own)
