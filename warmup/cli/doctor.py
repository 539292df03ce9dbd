"""`warmup doctor`: the command, and its findings as text or JSON on stdout."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import Annotated

import typer

from warmup.cli.arguments import DEVICE, JSON
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.core.errors import printable
from warmup.diagnostics.doctor import Finding

_STATE_WIDTH = 5
_NAME_WIDTH = 17


def doctor(
    *,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check this machine before GPU time is spent; exit 1 when a check fails."""
    from warmup.diagnostics.doctor import diagnose

    diagnosis = diagnose(device)
    (_print_json if as_json else _print)(diagnosis.findings)
    if diagnosis.failed:
        sys.stderr.write(f"doctor failed on: {', '.join(diagnosis.failed)}\n")
        raise typer.Exit(EXIT_FOUND)


def _print(findings: tuple[Finding, ...]) -> None:
    """Print a line for each finding, then its fix; on a terminal, folded to its width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    indent = " " * (_STATE_WIDTH + _NAME_WIDTH)
    for finding in findings:
        head = f"{finding.state:{_STATE_WIDTH}}{finding.name:{_NAME_WIDTH}}"
        _say(finding.said, head, indent, width)
        if finding.fix:
            _say(finding.fix, f"{indent}fix: ", f"{indent}     ", width)


def _say(text: str, head: str, indent: str, width: int) -> None:
    """Print *text* so that paths stay whole and nothing in it can drive a terminal."""
    lines = textwrap.wrap(
        printable(text),
        width=width,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _print_json(findings: tuple[Finding, ...]) -> None:
    json.dump([asdict(finding) for finding in findings], sys.stdout, indent=2)
    sys.stdout.write("\n")
