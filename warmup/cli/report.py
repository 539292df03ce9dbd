"""`warmup report`: a table, and what was measured with it, as one page of HTML."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from warmup.cli import options
from warmup.cli.output import say
from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.core.files import write_output


def report(
    table: options.TableFile,
    *,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="What `warmup compare --out` wrote: compare.json. Repeatable."
        ),
    ] = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option(help="A trace that torch.profiler exported. Repeatable."),
    ] = None,
    audit: Annotated[
        list[Path] | None, typer.Option(help="A log of a server. Repeatable: one audit of all.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to show, those that save most.")] = 200,
    out: Annotated[Path, typer.Option(help="The page to write.")],
) -> None:
    """Write a table's rows, gains, flags, starts, profiles and audit as one page.

    The page stands alone: it has no script, and loads nothing.
    """
    from warmup.cli.report_page import ReportParts, report_page
    from warmup.diagnostics.audit import audit as read_logs
    from warmup.diagnostics.profile.profile import profile_trace
    from warmup.diagnostics.profile.trace import read_trace
    from warmup.diagnostics.profile.trace_file import TraceFile
    from warmup.diagnostics.review.rules import review
    from warmup.diagnostics.review.table_rows import review_table
    from warmup.table.codec import digest_of
    from warmup.table.store import read

    logs = list(audit or ())
    for path in (table, *(compare or ()), *(profile or ()), *logs):
        if _is_same_file(out, path):
            raise SettingsError(f"--out {shown(out)} is read for the page", "name another file")
    tuned = read(table)
    digest = digest_of(tuned)
    traces = [
        (path.name, profile_trace(read_trace(TraceFile(path)), tuned, digest=digest))
        for path in profile or ()
    ]
    parts = ReportParts(
        name=table.name,
        table=tuned,
        doubts=review(review_table(tuned, None)),
        comparisons=[_comparison(path) for path in compare or ()],
        profiles=traces,
        audit=([path.name for path in logs], read_logs(logs, table=table)) if logs else None,
        command=shlex.join(["warmup", *sys.argv[1:]]),
    )
    text = report_page(parts, top)
    write_output(out, text, "--out")
    say(f"{out}: {len(text.encode()) // 1024} KiB")


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # a file is missing, or cannot be named: reading it says so
        return False


def _comparison(path: Path) -> str:
    from warmup.cli.report_page import comparison_part
    from warmup.diagnostics.review.documents import comparison_in

    document = comparison_in(path)
    try:
        return "".join(comparison_part(path.name, document))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SettingsError(
            f"--compare {shown(path)}: damaged: not what `warmup compare` writes "
            f"({type(error).__name__}: {shown(error)})",
            "write it again with --out",
        ) from error
