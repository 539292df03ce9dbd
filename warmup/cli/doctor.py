"""`warmup doctor`: the command, and its findings as text or JSON on stdout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import typer

from warmup.cli import options
from warmup.cli.output import complain, fold, print_report, record, terminal_width
from warmup.cli.streams import EXIT_FOUND
from warmup.diagnostics.doctor import Diagnosis

_STATE_COLUMNS: Final = 5
_NAME_COLUMNS: Final = 17


def doctor(
    *,
    device: options.DeviceOption = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Check this machine before a build or a server. Exit code 1 when a check fails."""
    from warmup.diagnostics.doctor import diagnose

    diagnosis = diagnose(device)
    print_report(diagnosis, spell, lambda found: record(found.findings), as_json=as_json)
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
