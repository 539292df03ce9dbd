"""`warmup run`, which serves from a table, and `warmup audit`, which counts what servers logged."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer

from warmup.cli import options
from warmup.cli.output import MEANINGS, complain, fold, meanings, record, say
from warmup.cli.streams import EXIT_FOUND, EXIT_MISMATCH
from warmup.core.errors import TableMismatchError
from warmup.core.events import in_brackets
from warmup.core.files import write_output
from warmup.core.text import counted, printable
from warmup.serving.audit import AuditReport
from warmup.table.schema import OnMissName, Uncovered

# What follows the first word that is no option belongs to the command, `--` or not.
CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False}
_RUN_PAGE: Final = "docs/how-to/run-without-code-changes.md"


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
    say(f"warmup run: {meanings(*words, page=_RUN_PAGE)}")
    if failed:
        complain(f"warmup run: failed on: {', '.join(failed)}")
    say(str(report))
    is_refused = on_miss == "strict" and report.audit.mismatch
    own = EXIT_MISMATCH if is_refused else EXIT_FOUND if failed else 0
    raise typer.Exit(report.exit_code or own)


_COVERAGE_PAGE: Final = "docs/explanation/coverage.md"


def audit(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG", help="Audit logs (JSON lines) or text logs of servers."),
    ],
    table: Annotated[
        Path | None, typer.Option(help="The table whose unused rows are listed.")
    ] = None,
    fail_on: options.FailOn = None,
    *,
    as_json: options.AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the report, instead of stdout: FILE.json is JSON, FILE.prom Prometheus "
            "metrics, any other text."
        ),
    ] = None,
    misses_out: Annotated[
        Path | None, typer.Option(help="File for the misses, for `warmup build --problems`.")
    ] = None,
) -> None:
    """Count hits, misses and uncovered measurements in serving logs."""
    from warmup.serving.audit import audit as read_logs
    from warmup.serving.audit import encode_misses

    wanted = options.parse_failures(fail_on)
    report = read_logs(logs, table=table)
    if misses_out is not None:
        write_output(misses_out, encode_misses(report), "--misses-out")
    text = spell(report, ".json" if as_json else "" if out is None else out.suffix)
    if out is not None:
        write_output(out, text, "--out")
    else:
        sys.stdout.write(text)
    if report.is_empty:
        complain(
            f"no event in {', '.join(map(str, logs))}: name an audit log (WARMUP_AUDIT_LOG), or "
            "log the events (WARMUP_LOG_EVENTS=1)"
        )
    if failed := report.failures(wanted):
        complain(f"audit failed on: {', '.join(failed)}")
    if failed or report.is_empty:
        raise typer.Exit(EXIT_FOUND)


def spell(report: AuditReport, suffix: str) -> str:
    if suffix == ".prom":
        from warmup.serving.audit import expose

        return expose(report)
    if suffix == ".json":
        counts = {"miss_count": report.miss_count, "reasons": dict(report.reasons)}
        return json.dumps({**record(report), **counts}, indent=2, sort_keys=True) + "\n"
    lines = (_verdict(report), *_counts(report), *_processes(report), *_cases(report))
    return "".join(f"{printable(line)}\n" for line in lines)


def _verdict(report: AuditReport) -> str:
    tables = [digest[:12] for digest in report.digests] or ["no table"]
    name = tables[0] if len(tables) == 1 else counted(len(tables), "table")
    unused = "unknown rows" if report.unused is None else counted(len(report.unused), "row")
    return (
        f"warmup {name}: {counted(sum(report.hits.values()), 'hit')}, "
        f"{counted(report.miss_count, 'miss')}, {sum(report.uncovered.values())} uncovered, "
        f"{counted(report.from_cache, 'graph')} from cache "
        f"({counted(report.cached_decisions, 'decision')}), {unused} unused"
    )


def _counts(report: AuditReport) -> Iterator[str]:
    digests = ", ".join(report.digests) or "none"
    yield f"runs        {report.runs} (table digest {digests})"
    problems = counted(len(report.hits), "problem")
    yield f"hits        {sum(report.hits.values())} ({problems}): {MEANINGS['hits']}"
    misses = f"{report.miss_count}{in_brackets(report.reasons)}"
    yield f"misses      {misses}: {MEANINGS['misses']}, inductor's default was compiled"
    yield from chain.from_iterable(fold(clause, " " * 12) for clause in report.advice)
    uncovered = f"{sum(report.uncovered.values())}{in_brackets(report.uncovered)}"
    yield f"uncovered   {uncovered}: {MEANINGS['uncovered']} ({_COVERAGE_PAGE})"
    missed = f", {report.cached_misses} missed" if report.cached_misses else ""
    decisions = f"{counted(report.cached_decisions, 'decision')}{missed}"
    graphs = counted(report.from_cache, "graph")
    yield f"from cache  {graphs} ({decisions}): compiled by an earlier run"
    if report.foreign:
        foreign = counted(sum(report.foreign.values()), "graph")
        yield f"foreign     {foreign}{in_brackets(report.foreign)}: {MEANINGS['foreign']}"
    if report.tuned:
        yield f"tuned       {sum(report.tuned.values())} (on_miss=tune)"
    if report.outside:
        calls = counted(sum(report.outside.values()), "call")
        yield f"outside     {calls}{in_brackets(report.outside)}: no bucket served their sizes"
    if report.unused is None and report.cached_decisions:
        yield f"unused rows unknown: {graphs} came from a cache, and name no rows"
    elif report.unused is None:
        yield "unused rows unknown: name the table with --table"
    else:
        yield f"unused rows {len(report.unused)}: no run asked for them"
    if report.diverged:
        yield f"diverged    {len(report.diverged)}: runs differ in their choices or tables"
    for line in report.contradictions:
        yield f"contradicted option {line}"
    if report.silent:
        yield f"silent runs {', '.join(report.silent)}: {MEANINGS['silent']}"
    if report.damaged:
        yield f"unreadable  {counted(report.damaged, 'event line')}"


def _processes(report: AuditReport) -> Iterator[str]:
    for frame, count in report.uncompiled.items():
        yield f"uncompiled  x{count} {frame}"
    for frame, count in report.changed.items():
        yield f"changed     x{count} {frame}: weights were changed that it had frozen"
    for bundle, count in report.bundles.items():
        yield f"bundle      x{count} {bundle}"
    if report.invariance is not None:
        yield f"invariant   {report.invariance}"
    if report.bypassed:
        yield f"bypassed   {in_brackets(report.bypassed)}: runs with graphs that asked nothing"
    if report.failed:
        yield f"failed      {report.failed}: could not install the table"
    if report.mismatch:
        yield f"mismatch    {report.mismatch}: {MEANINGS['mismatch']}"
    if report.unfinished:
        yield (
            f"no summary  {', '.join(report.unfinished)}: still running, or ended by a signal, as "
            "uvicorn and vLLM are when they stop; every event until then is counted"
        )


def _cases(report: AuditReport) -> Iterator[str]:
    for divergence in report.diverged:
        yield f"diverged {divergence.key or 'table digest'}"
        for choice, runs in divergence.choices.items():
            yield f"    {choice}: {', '.join(runs)}"
    for miss in report.misses:
        yield f"miss x{miss.count} {miss.key} ({miss.reason})"
        if miss.choice:
            yield f"    compiled {miss.choice}"
        if miss.nearest:
            yield f"    nearest row {miss.nearest}"
            yield f"    differs in {', '.join(miss.differs)}"
    yield from (f"unused {key}" for key in report.unused or ())
