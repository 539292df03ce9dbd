"""Whether the times of a build can be believed, and which rows to measure again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from warmup.cli.show_render import UNSTABLE_MARK
from warmup.core.counted import counted
from warmup.core.machine_state import MachineState
from warmup.core.rows import Flag, Row
from warmup.keys.registry import kind_of
from warmup.tuning.report import BuildReport

RETRY: Final = "add --retry unstable to this command"
MEASURE_ALL: Final = "add --force to this command, which measures every problem again"
UNDECIDED: Final = (
    "warmup build: no row measured now could be decided (exit code 4); the table can be served, "
    "with the library's kernels"
)
_MAX_LISTED: Final = 20  # flagged rows, and rejected candidates


def spell_belief(report: BuildReport, remedy: str = RETRY) -> Iterator[str]:
    """Yield whether the times of a build can be believed, its unstable rows, and what a retry did.

    Nothing about the times where nothing was measured. *remedy* measures unstable rows again.
    """
    rows, machine = report.table.rows, report.machine
    now = {one.key for one in report.timings}
    asked = now.union(*(one.keys for one in report.buckets), report.known, report.retried or ())
    asked = asked.union(report.not_tuned).intersection(rows)
    unstable = sorted(key for key in asked if rows[key].evidence.is_unstable)
    others = sum(row.evidence.is_unstable for row in rows.values()) - len(unstable)
    if machine.measured:
        yield f"times of this build {_belief(machine, len(now.intersection(unstable)), len(now))}"
    unmarked = [key for key in unstable if kind_of(key).summary is not None]  # listed in no grid
    yield from first_lines([f"row flagged {Flag.UNSTABLE}: {key}" for key in unmarked], "such rows")
    if report.retried is not None and not report.retried:
        yield "no row of the table is unstable: nothing was measured again"
    elif report.retried:
        stable = report.retried.intersection(now).difference(unstable)
        left = report.retried.difference(now)
        yield (
            f"{counted(len(report.retried), 'unstable row')} before: {len(stable)} stable now, "
            f"{len(report.kept)} kept as it was, {len(left)} not asked for by these buckets"
        )
        yield from (f"kept: {key}: {reason}" for key, reason in report.kept.items())
    if others:
        yield f"{counted(others, 'more unstable row')} in the table, not asked for by this command"
    if unstable:
        yield unstable_rows(len(unstable), len(asked), remedy)


def unstable_rows(unstable: int, rows: int, remedy: str) -> str:
    """Say how many of the *rows* of this command are unstable, their kernel, and the *remedy*."""
    return (
        f"{unstable} of {counted(rows, 'row')} unstable (marked {UNSTABLE_MARK}): such a row has "
        "the library's kernel for want of better times; to measure it again on a quiet machine, "
        f"{remedy} (`warmup show TABLE --review` lists the times that cannot be true)"
    )


def is_undecided(rows: Mapping[str, Row], measured: Collection[str]) -> bool:
    """Return whether something was *measured*, and no time of it carries a decision."""
    flags = [rows[key].evidence.is_unstable for key in measured if key in rows]
    return bool(flags) and all(flags)


def _belief(machine: MachineState, unstable: int, measured: int) -> str:
    """Return that times can be believed, or what makes them doubtful."""
    reasons = [*machine.complaints]
    load = ""
    if machine.worst_share is not None:
        load = f"other processes took up to {machine.worst_share:.0%} of {machine.cpus:g} CPUs"
    if machine.disturbed:
        reasons.append(
            f"{load}, too much in {machine.disturbed} of {machine.measured} measurements"
        )
    if unstable:
        reasons.append(f"{unstable} of {counted(measured, 'row')} measured now unstable")
    if reasons:
        return f"are doubtful: {'; '.join(reasons)}"
    seen = [*machine.notes, *filter(None, [load])] or ["no disturbance of the GPU was seen"]
    return f"can be believed: {'; '.join(seen)}"


def first_lines(lines: list[str], what: str) -> Iterator[str]:
    """Yield the first of *lines*, and how many more there are of *what*."""
    yield from lines[:_MAX_LISTED]
    if len(lines) > _MAX_LISTED:
        yield f"{len(lines) - _MAX_LISTED} more {what}"
