"""`warmup build --out TABLE -- COMMAND`: runs a program once, and tunes its decisions."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from warmup.cli.build_belief import UNDECIDED, is_undecided, unstable_rows
from warmup.cli.build_source import refuse_beside
from warmup.cli.exit_codes import EXIT_FOUND, EXIT_UNDECIDED
from warmup.cli.output import complain, fold, grid, print_report, say, terminal_width
from warmup.cli.show_render import ROW_HEAD, row_cells
from warmup.core.counted import counted
from warmup.core.error_text import printable
from warmup.core.events import in_brackets
from warmup.core.rows import Row
from warmup.keys.kind import natural_order
from warmup.keys.registry import kind_of

if TYPE_CHECKING:
    from warmup.serving.program_build import ProgramBuild
    from warmup.serving.run import RunReport

_UNSET: Final[Mapping[str, Any]] = {"policy": "exact"}
_GIVEN_AGAIN: Final = "give the same command again"
_OF_PROGRAMS: Final = "docs/how-to/build-from-a-program.md"


def build_program(
    command: Sequence[str],
    out: Path | None,
    refused: Mapping[str, Any],
    how: Mapping[str, Any],
    *,
    after: bool,
    as_json: bool,
) -> None:
    """Build the table *out* from *command*; end with the command's exit code, or else the build's.

    *how* are the other arguments of `build_from_program`, and those in *refused* say nothing here.
    """
    from warmup.cli.progress import BuildProgress
    from warmup.cli.signals import interruptible
    from warmup.serving.program_build import build_from_program

    given = [
        name
        for name, value in refused.items()
        if value != _UNSET.get(name) and value not in (None, False, ())
    ]
    hint = "; --bundle takes no value, the bundle is written beside the table"
    refuse_beside(
        f"{printable(command[0])!r}, which was read as a program to run,",
        given,
        hint if "bundle" in given else "",
    )
    if out is None:
        raise typer.BadParameter("a program needs --out, the table to complete")
    kept = {name: value for name, value in how.items() if name not in ("force", "dry_run")}
    progress = BuildProgress()

    def end(run: RunReport, left: int, again: int) -> None:
        _say_ended(run, left, again)
        if left or again:  # the terminal was the program's until now
            stack.enter_context(progress)

    with interruptible(progress.interrupted), contextlib.ExitStack() as stack:
        result = build_from_program(
            command,
            out=out,
            after=after,
            stdout_to_stderr=as_json,
            observer=progress,
            ended=end,
            **kept,
        )
    print_report(result, spell_program, document_of_program, as_json=as_json)
    rows, measured = dict(result.rows), set(result.tuned_in_program)
    if result.rest is not None:
        rows |= result.rest.table.rows
        measured |= {one.key for one in result.rest.timings}
    if undecided := is_undecided(rows, measured):
        complain(UNDECIDED)
    own = EXIT_FOUND if not result.is_complete else EXIT_UNDECIDED if undecided else 0
    code = result.run.exit_code or own
    raise typer.Exit(code)


def _say_ended(run: RunReport, left: int, again: int) -> None:
    """Say that the program has ended, and what happens now."""
    then = [f"{counted(left, 'problem')} left to tune"] if left else []
    then += [f"{counted(again, 'unstable row')} to measure again"] if again else []
    words = ", ".join(then) or "nothing left to tune"
    say(f"warmup build: the program ended with code {run.exit_code}; {words}")


def spell_program(result: ProgramBuild) -> Iterator[str]:
    """Yield the rows that were tuned, how the program was recorded, and what has no row."""
    from warmup.cli.build_render import slower_at_largest, spell

    rest, rows = result.rest, result.rows
    again = set() if rest is None else {one.key for one in rest.timings}
    own = sorted(result.tuned_in_program - again, key=natural_order)
    if tuned := {key: rows[key] for key in own}:
        yield "tuned in the program:"
        yield from _tuned_rows(tuned)
        yield from slower_at_largest(tuned)
    if rest is not None and (rest.timings or rest.not_rebuilt or rest.not_tuned):
        yield "tuned when the program had ended:"
        yield from spell(rest, _GIVEN_AGAIN)
    else:
        if unstable := sum(row.evidence.is_unstable for row in rows.values()):
            yield unstable_rows(unstable, len(rows), _GIVEN_AGAIN)
        words = f"{counted(len(rows), 'row')}, {len(own)} tuned now"
        yield f"{result.path}: {words if rows else 'no rows: nothing was asked'}"
    if changed := result.changed_afterwards:
        yield (
            f"{counted(len(changed), 'decision')} changed when the program had ended, and kernels "
            f"with them: {_GIVEN_AGAIN}, which tunes these kernels"
        )
    audit = result.run.audit
    parts = [
        f"processes {audit.runs}",
        f"hits {sum(audit.hits.values())}",
        f"tuned in the program {len(result.tuned_in_program)}",
        f"left for the end {len(result.problems)}",
        f"silent {len(audit.silent)}",
    ]
    parts += [f"uncovered{in_brackets(audit.uncovered)}"] if audit.uncovered else []
    parts += [f"graphs from a cache {audit.from_cache}"] if audit.from_cache else []
    parts += [f"not recorded {audit.failed}"] if audit.failed else []
    parts += [f"unreadable event lines {audit.damaged}"] if audit.damaged else []
    yield from fold(
        f"program: {', '.join(parts)} ({_OF_PROGRAMS})", indent=2, width=terminal_width()
    )
    if result.run.unread:
        yield f"the log of the program was not read to its end ({result.run.unread})"
    if rest is not None and rest.not_rebuilt and result.collected:
        yield "problems that cannot be rebuilt are tuned while the program runs: omit --after"
    if result.run.exit_code:
        yield f"the program ended with code {result.run.exit_code}"


def _tuned_rows(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield *rows*: one line each, or the number of rows of a kind that is not listed."""
    listed, counts = list[Sequence[str]](), Counter[str]()
    for key, row in rows.items():
        kind = kind_of(key)
        if kind.summary is None:
            words = kind.ingredients(key)
            question = words.get(kind.question or "", kind.name)
            listed.append((words.get("m", ""), kind.brief(key), question, *row_cells(row)))
        else:
            counts[kind.summary] += 1
    if listed:
        yield from grid(("m", "op", "epilogue", *ROW_HEAD), listed, texts=4)
    yield from (f"{count} {summary}" for summary, count in counts.items())


def document_of_program(result: ProgramBuild) -> dict[str, Any]:
    """Return *result* as JSON values."""
    from warmup.cli.build_render import document

    audit, rest = result.run.audit, result.rest
    return {
        "path": str(result.path),
        "exit_code": result.run.exit_code,
        "processes": audit.runs,
        "hits": sum(audit.hits.values()),
        "silent": len(audit.silent),
        "not_recorded": audit.failed,
        "from_cache": audit.from_cache,
        "uncovered": dict(audit.uncovered),
        "tuned_in_program": [
            {"key": key, "kind": kind_of(key).name} for key in sorted(result.tuned_in_program)
        ],
        "changed_afterwards": result.changed_afterwards,
        "left": [{"key": one.key, "kind": one.kind} for one in result.problems],
        "rest": None if rest is None else document(rest),
    }
