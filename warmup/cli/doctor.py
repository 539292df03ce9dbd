"""`warmup doctor`: the command, and its findings as text or JSON on stdout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import complain, fold, print_report, terminal_width
from warmup.diagnostics.doctor import Diagnosis

_STATE_COLUMNS: Final = 5
_NAME_COLUMNS: Final = 17


def doctor(
    *,
    device: options.DeviceOption = "auto",
    tables: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of this machine, examine rows: a table or a folder of tables. Repeatable."
        ),
    ] = None,
    served: Annotated[
        list[str] | None,
        typer.Option(
            help="With --tables: versions that are served, such as torch=2.13,triton=3.8."
        ),
    ] = None,
    audit: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --tables: audit logs, which name versions and devices. Repeatable."
        ),
    ] = None,
    profiles: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --tables: documents of `warmup profile --json`, which have times. "
            "Repeatable."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check this machine before a build or a server. Exit code 1 when a check fails.

    With --tables, find stored rows that nobody serves, devices that lack rows, and rows that
    drifted.
    """
    if tables:
        from warmup.diagnostics.tables.examine import examine_tables

        diagnosis = examine_tables(
            tables, served=served or (), logs=audit or (), profiles=profiles or ()
        )
    elif served or audit or profiles:
        raise typer.BadParameter("--served, --audit and --profiles need --tables")
    else:
        from warmup.diagnostics.doctor import diagnose

        diagnosis = diagnose(device)
    print_report(diagnosis, spell, document, as_json=as_json)
    if diagnosis.failed:
        complain(f"doctor failed on: {', '.join(diagnosis.failed)}")
        raise typer.Exit(EXIT_FOUND)


def spell(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield a line for each finding and a line for its fix, folded to the terminal's width."""
    width = terminal_width()
    indent = " " * (_STATE_COLUMNS + _NAME_COLUMNS)
    for finding in diagnosis.findings:
        head = f"{finding.state:{_STATE_COLUMNS}}{finding.name:{_NAME_COLUMNS}}"
        yield from fold(finding.said, head, width=width)
        if finding.fix:
            yield from fold(f"fix: {finding.fix}", indent, indent=len(indent) + 5, width=width)


def document(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return the findings as JSON values."""
    return [asdict(finding) for finding in diagnosis.findings]
