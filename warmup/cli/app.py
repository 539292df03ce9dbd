"""Commands and their options. Each command imports its verb when it runs."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from warmup.cli.arguments import JSON
from warmup.cli.bench_layers import layers
from warmup.cli.bench_mm import mm
from warmup.cli.build import build
from warmup.cli.check import check
from warmup.cli.compare import compare
from warmup.cli.doctor import doctor
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.explain import explain
from warmup.cli.run import CONTEXT_SETTINGS
from warmup.cli.run import run as run_command
from warmup.cli.suggest import suggest
from warmup.core.errors import SettingsError
from warmup.core.version import __version__

app = typer.Typer(
    name="warmup",
    help="Max-autotune ahead of time: build a table, check it, serve from it, audit it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(
    help="Time products and layers against other ways to compute them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench.command()(mm)
bench.command()(layers)
app.add_typer(bench, name="bench")


class Prefer(StrEnum):
    """How merge settles a key with two winners."""

    A = "a"
    B = "b"
    FASTER = "faster"


class AuditFormat(StrEnum):
    """How an audit is printed."""

    TEXT = "text"
    JSON = "json"
    PROMETHEUS = "prometheus"


def _print_version(wanted: bool) -> None:  # noqa: FBT001  typer passes a flag's value
    if wanted:
        sys.stdout.write(f"warmup {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Max-autotune ahead of time: build a table, check it, serve from it, audit it."""
    del version


app.command()(build)
app.command()(doctor)
app.command()(check)
app.command()(compare)
app.command()(explain)
app.command()(suggest)
app.command("run", context_settings=CONTEXT_SETTINGS)(run_command)


@app.command()
def show(
    table: Annotated[Path, typer.Argument(help="The table file.")],
    op: Annotated[str | None, typer.Option(help="Only this op, such as addmm.")] = None,
    bucket: Annotated[str | None, typer.Option(help="Only rows with this m, such as 560.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print a table for reading."""
    from warmup.cli.render import print_table, print_table_json
    from warmup.table.store import read

    (print_table_json if as_json else print_table)(read(table), op, bucket)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="One table.")],
    b: Annotated[Path, typer.Argument(help="Another table.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print what differs between two tables; exit 1 when something does."""
    from warmup.cli.render import print_difference, print_difference_json
    from warmup.table.merge import diff as run
    from warmup.table.store import read

    difference = run(read(a), read(b))
    (print_difference_json if as_json else print_difference)(difference)
    if not difference.is_empty:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def merge(
    a: Annotated[Path, typer.Argument(help="One table.")],
    b: Annotated[Path, typer.Argument(help="Another table for the same device and runtime.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the union.")],
    prefer: Annotated[Prefer | None, typer.Option(help="Whose winner to take on conflict.")] = None,
) -> None:
    """Write the union of two tables; conflicts are an error unless settled with --prefer."""
    from warmup.table.merge import merge as run
    from warmup.table.store import read, write

    union = run(read(a), read(b), prefer.value if prefer else None)
    write(out, union)
    sys.stderr.write(f"{out}: {len(union.rows)} rows\n")


@app.command()
def audit(
    logs: Annotated[list[Path], typer.Argument(help="JSON-lines audit logs or server text logs.")],
    table: Annotated[Path | None, typer.Option(help="The table whose unused rows to list.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit 1 on any of: miss,uncovered,silent,diverged,outside.")
    ] = None,
    form: Annotated[
        AuditFormat | None, typer.Option("--format", help="How to print it; text without this.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write there, whole or not at all, and not to stdout.")
    ] = None,
    misses_out: Annotated[
        Path | None, typer.Option(help="Write what `warmup build --problems` tunes.")
    ] = None,
) -> None:
    """Read what happened at serving: hits, misses by reason, uncovered work, rows never used."""
    from warmup.cli.audits import put, spell_audit
    from warmup.diagnostics.audit import FAILURES
    from warmup.diagnostics.audit import audit as run
    from warmup.diagnostics.misses import encode_misses

    wanted = [word.strip() for word in fail_on.split(",")] if fail_on else []
    if unknown := [word for word in wanted if word not in FAILURES]:
        raise SettingsError(
            f"--fail-on: {', '.join(unknown)} is not something to fail on",
            f"use any of {','.join(FAILURES)}",
        )
    if as_json and form not in (None, AuditFormat.JSON):
        raise SettingsError(f"--json and --format {form} are two formats", "give one of them")
    report = run(logs, table=table)
    if misses_out is not None:
        put(misses_out, encode_misses(report), "--misses-out")
    text = spell_audit(report, AuditFormat.JSON if as_json else form or AuditFormat.TEXT)
    if out is not None:
        put(out, text, "--out")
    else:
        sys.stdout.write(text)
    if failed := report.failures(wanted):
        sys.stderr.write(f"audit failed on: {', '.join(failed)}\n")
        raise typer.Exit(EXIT_FOUND)
