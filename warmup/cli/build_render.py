"""The report of a build, and the plan of a dry run, as text and as JSON."""

from __future__ import annotations

import dataclasses
import functools
import operator
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from warmup.cli.options import is_verbose
from warmup.cli.output import fold, grid, record, spell_peaks, terminal_width
from warmup.cli.tables import ROW_HEAD, UNSTABLE_MARK, row_cells, spell_limits
from warmup.core.buckets import Bucket
from warmup.core.device import MachineState
from warmup.core.events import Uncompiled, in_brackets, selections
from warmup.core.method import search_to_json
from warmup.core.rows import SHARE_FLAGS, Flag, Rejection, Row, lag_behind_library
from warmup.core.text import counted
from warmup.keys.kind import Kind, natural_order
from warmup.keys.registry import KINDS, kind_of
from warmup.measuring.selection import rejections, worst_regret_over_bound
from warmup.tuning.report import BuildReport, name_of

# Whether the times of a build can be believed, and which rows to measure again.

RETRY: Final = "add --retry unstable to this command"
MEASURE_ALL: Final = "add --retry all to this command, which measures every problem again"
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


# The report of a build, and of one that ran a program.


def spell_devices(report: BuildReport) -> Iterator[str]:
    """Yield a line for each of several devices: its problems, its control time, why it was left."""
    for share in report.devices:
        control = f", control problem {share.control_us:.1f} us" if share.control_us else ""
        left = f"; left out: {share.left_out}" if share.left_out else ""
        yield f"{share.name}: {counted(share.problems, 'problem')}{control}{left}"


_EXPECTED: Final = {None, Rejection.COMPILE, Rejection.LAUNCH}  # a config too large for the device


def spell(report: BuildReport, remedy: str = RETRY) -> Iterator[str]:
    """Yield where the table is and whether its times can be believed, then the rows of each bucket.

    What a reader should look at follows, and with -v the seconds by stage. A bucket with padded
    weights is listed with the rows that it does not share with the bucket of unpadded weights.
    *remedy* measures unstable rows again.
    """
    yield _verdict(report)
    yield from spell_belief(report, remedy)
    yield from grid(("bucket", "op", "epilogue", *ROW_HEAD), _rows(report), texts=4)
    asked = {key for result in report.buckets for key in result.keys}
    for kind in KINDS.values():
        own = [report.table.rows[key] for key in asked if kind_of(key) is kind]
        if own and kind.summary is not None:
            yield f"{len(own)} {kind.summary}{_mean_gain(own, kind.library_default)}"
            yield from _tried(report, kind)
    for site, count in sorted(report.uncovered.items()):
        is_selection = bool(selections([site]))
        done = "default mode's kernel is compiled" if is_selection else "measured at every start"
        yield f"uncovered: {site} {count}: no row kind, {done} (docs/explanation/coverage.md)"
    if report.peaks is not None:
        yield spell_peaks(report.peaks, report.peaks.tflops)
    if report.prepared is not None and (report.prepared.padded or report.prepared.left):
        yield from str(report.prepared).splitlines()
    if report.prepared is not None and report.prepared.padded:
        yield (
            f'to serve with padded weights: warmup.install("{report.path}", model=model); '
            "without model=, the rows for unpadded weights are used"
        )
    for result in report.buckets:
        yield from spell_graphs(result.name, result.graphs, result.uncompiled)
    costs = {result.name: result.cost for result in report.buckets if result.cost is not None}
    yield from spell_limits(costs, report.table.policy.timing.launch, terminal_width())
    yield from spell_devices(report)
    yield from _doubts(report)
    yield from _outcome(report)


def _rows(report: BuildReport) -> Iterator[Sequence[str]]:
    """Yield the cells of each bucket's rows, of the kinds that are listed row by row."""
    listed: set[tuple[Bucket, str]] = set()
    for result in report.buckets:
        for key in result.keys:
            kind = kind_of(key)
            if kind.summary is not None or (result.bucket, key) in listed:
                continue
            listed.add((result.bucket, key))
            question = kind.ingredients(key).get(kind.question or "", kind.name)
            yield result.name, kind.brief(key), question, *row_cells(report.table.rows[key])


def _mean_gain(rows: list[Row], library_default: str) -> str:
    """Return how much faster the winners of *rows* are than the *library_default*, on average."""
    ratios = [
        row.evidence.library_us / row.evidence.time_us for row in rows if row.evidence.library_us
    ]
    if not ratios:
        return ""
    return f", {statistics.geometric_mean(ratios):.2f}x over {library_default}"


def _tried(report: BuildReport, kind: Kind) -> Iterator[str]:
    """Yield how many candidates were tried for the rows of *kind* tuned now, by source."""
    found = [one.searched for one in report.timings if one.searched and kind_of(one.key) is kind]
    if found:
        total = functools.reduce(operator.add, found)
        yield f"candidates tried for {counted(len(found), 'kernel')}: {total.by_source}"


def _doubts(report: BuildReport) -> Iterator[str]:
    """Yield flagged rows, ranges to split, and candidates with an unexpected rejection."""
    for flag in SHARE_FLAGS:
        keys = [one.key for one in report.timings if flag in one.row.evidence.flags]
        yield from first_lines(
            [f"row flagged {flag}: {key}" for key in keys], f"rows flagged {flag}"
        )
    yield from map(str, _splits(report))
    yield from slower_at_largest({one.key: one.row for one in report.timings})
    unexpected = [
        f"candidate rejected ({timing.rejection}): {timing.winner.short} for {tuned.key}: "
        f"{timing.said}"
        for tuned in report.timings
        for timing in tuned.timings
        if timing.rejection not in _EXPECTED
    ]
    yield from first_lines(unexpected, "rejected candidates; --json prints all")


def slower_at_largest(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield which of *rows* are slower than the library at the largest size of their range."""
    behind = [
        f"{row.winner.short} takes {ratio:.2f}x the library's time at size "
        f"{row.evidence.along[-1][0]}, and was chosen since the library loses more, or fails, "
        f"at another size of the range: {key}"
        for key, row in rows.items()
        if (ratio := lag_behind_library(row.evidence)) is not None
    ]
    yield from first_lines(behind, "rows that are slower at the largest size of their range")


def _verdict(report: BuildReport) -> str:
    """Return where the table is, its digest, and how many rows it has and were tuned now."""
    counts = rejections(report.timings)
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    rejected = f" (rejected candidates: {reasons})" if reasons else ""
    known = f"{len(report.known)} in the table already, " if report.known else ""
    known += f"{len(report.taken)} from earlier tables, " if report.taken else ""
    rows = counted(len(report.table.rows), "row")
    return (
        f"{report.path}: {rows}, {len(report.timings)} tuned now{rejected}, "
        f"{known}{report.seconds:.1f} s, digest {report.digest[:16]}"
    )


def _outcome(report: BuildReport) -> Iterator[str]:
    """Yield where rows were taken, where the bundle is, and what is not in the table."""
    yield from spell_sources(report)
    if report.stages and is_verbose():
        spent = ", ".join(f"{stage.label} {taken:.1f}" for stage, taken in report.stages.items())
        line = f"seconds by stage (docs/explanation/search.md#seconds-of-a-build): {spent}"
        yield from fold(line, indent=2, width=terminal_width())
    if not (report.timings or report.not_tuned or report.not_rebuilt):
        some = ", some of them from earlier tables" if report.taken else ""
        yield from fold(
            f"nothing to tune: every problem had its row{some}", indent=2, width=terminal_width()
        )
    if report.bundle is not None:
        yield f"bundle (compiled kernels; docs/how-to/ship-a-bundle.md) {report.bundle}"
    for what, keys in (
        ("not rebuilt", report.not_rebuilt),
        ("not tuned", report.not_tuned),
        ("not trusted, not served", report.distrusted),
        ("timed alone, not as it will run", report.not_fused),
    ):
        yield from (f"{what}: {key}: {reason}" for key, reason in keys.items())


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """A bucket whose winners are too slow at some size of its range, and the bucket to add."""

    bucket: str
    keys: tuple[str, ...]
    size: int
    ratio: float
    add: Bucket

    def __str__(self) -> str:
        verb = "is" if len(self.keys) == 1 else "are"
        return (
            f"{self.bucket}: {counted(len(self.keys), 'row')} {verb} up to {self.ratio:.2f}x as "
            f"slow as the best at size {self.size}: add the bucket {self.add}"
        )


def _splits(report: BuildReport) -> list[_Split]:
    """Return which buckets to split: those where some winner's regret is above the bound."""
    from warmup.models.inputs import sizes_within  # needs torch, which a build has loaded

    found = []
    for result in report.buckets:
        rows = ((key, report.table.rows[key]) for key in result.keys)
        over = {key: worst for key, row in rows if (worst := worst_regret_over_bound(row.evidence))}
        if over and (within := sizes_within(result.bucket)):
            size, ratio = max(over.values(), key=lambda worst: worst[1])
            found.append(_Split(result.name, tuple(over), size, ratio, within[-1]))
    return found


def document(report: BuildReport) -> dict[str, Any]:
    """Return the record of *report*: of the table its digest and the keys of unstable rows.

    Every candidate's time is there, the median in microseconds.
    """
    without = ("table", "timings", "prepared", "plan")
    rows = report.table.rows
    return {
        **record(report, without=without),
        "rows": len(rows),
        "unstable": sorted(key for key, row in rows.items() if row.evidence.is_unstable),
        "buckets": [record(result, "error") for result in report.buckets],
        "problems": [
            {
                "key": tuned.key,
                "winner": str(tuned.row.winner),
                "searched": None if tuned.searched is None else search_to_json(tuned.searched),
                "candidates": [
                    {
                        "choice": str(timing.winner),
                        **record(timing, without=("winner", "error")),
                        "along_us": dict(timing.along_us),
                    }
                    for timing in tuned.timings
                ],
            }
            for tuned in report.timings
        ],
        "splits": record(_splits(report)),
    }


_MAX_PLANNED: Final = 20  # problems to tune


def spell_plan(report: BuildReport) -> Iterator[str]:
    """Yield what each bucket asks for, the problems that would be tuned, and the expected time."""
    plan = report.plan
    assert plan is not None
    for one in plan.buckets:
        without = f", without {counted(one.left_out, 'repeated layer')}" if one.left_out else ""
        name = name_of(one.bucket)
        yield (
            f"{name}: {counted(len(one.missing), 'problem')} to tune, {len(one.known)} in "
            f"the table already{without}"
        )
        yield from spell_graphs(name, one.graphs, one.uncompiled)
    for key in plan.missing[:_MAX_PLANNED]:
        yield f"to tune: {key}"
    if len(plan.missing) > _MAX_PLANNED:
        yield f"{len(plan.missing) - _MAX_PLANNED} more to tune; --json has all"
    yield from plan.remarks
    known = f"{len(plan.known)} in the table already"
    known += f" or in earlier tables ({len(report.taken)})" if report.taken else ""
    total = f"{report.path}: {counted(len(plan.missing), 'problem')} to tune, {known}"
    yield total
    yield from spell_sources(report)
    if not plan.missing:
        yield "nothing to tune"
    yield f"dry run: nothing was measured or written; it took {report.seconds:.1f} s"


def spell_sources(report: BuildReport) -> Iterator[str]:
    """Yield a line for each table of ``--rows-from``: rows taken, and rows refused by reason."""
    for source in report.rows_from:
        line = f"rows from {source.path}: {len(source.taken)} taken"
        reasons = "; ".join(f"{count} refused: {why}" for why, count in source.reasons.items())
        yield from fold(
            f"{line}{', ' if reasons else ''}{reasons}", indent=2, width=terminal_width()
        )


def spell_graphs(bucket: str, graphs: int, uncompiled: Uncompiled) -> Iterator[str]:
    """Yield lines about a model whose graph breaks or that runs uncompiled; else nothing."""
    lines = list(uncompiled.lines())
    if graphs > 1:
        lines.insert(
            0,
            f"the model breaks into {graphs} graphs; branches that these inputs do not take are "
            "not built (TORCH_LOGS=graph_breaks says more)",
        )
    for line in lines:
        yield from fold(f"{bucket}: {line}", indent=2, width=terminal_width())


def document_of_plan(report: BuildReport) -> dict[str, Any]:
    """Return the record of the plan, with the file and the seconds of the *report*."""
    shared = {"path": str(report.path), "seconds": report.seconds}
    return {**record(report.plan), **shared, "rows_from": record(report.rows_from)}


# A build from a program: `warmup build --out TABLE -- COMMAND`.

_GIVEN_AGAIN: Final = "give the same command again"
_OF_PROGRAMS: Final = "docs/how-to/build-from-a-program.md"


def spell_program(report: BuildReport) -> Iterator[str]:
    """Yield the rows that were tuned, how the program was recorded, and what has no row."""
    program = report.program
    assert program is not None
    rows, again = program.rows, {one.key for one in report.timings}
    own = sorted(program.tuned - again, key=natural_order)
    if tuned := {key: rows[key] for key in own}:
        yield "tuned in the program:"
        yield from _tuned_rows(tuned)
        yield from slower_at_largest(tuned)
    if report.timings or report.not_rebuilt or report.not_tuned:
        yield "tuned when the program had ended:"
        yield from spell(report, _GIVEN_AGAIN)
    else:
        if unstable := sum(row.evidence.is_unstable for row in rows.values()):
            yield unstable_rows(unstable, len(rows), _GIVEN_AGAIN)
        words = f"{counted(len(rows), 'row')}, {len(own)} tuned now"
        yield f"{report.path}: {words if rows else 'no rows: nothing was asked'}"
    if changed := program.changed(report.table):
        yield (
            f"{counted(len(changed), 'decision')} changed when the program had ended, and kernels "
            f"with them: {_GIVEN_AGAIN}, which tunes these kernels"
        )
    audit = program.run.audit
    parts = [
        f"processes {audit.runs}",
        f"hits {sum(audit.hits.values())}",
        f"tuned in the program {len(program.tuned)}",
        f"left for the end {len(program.problems)}",
        f"silent {len(audit.silent)}",
    ]
    parts += [f"uncovered{in_brackets(audit.uncovered)}"] if audit.uncovered else []
    parts += [f"graphs from a cache {audit.from_cache}"] if audit.from_cache else []
    parts += [f"not recorded {audit.failed}"] if audit.failed else []
    parts += [f"unreadable event lines {audit.damaged}"] if audit.damaged else []
    yield from fold(
        f"program: {', '.join(parts)} ({_OF_PROGRAMS})", indent=2, width=terminal_width()
    )
    if program.run.unread:
        yield f"the log of the program was not read to its end ({program.run.unread})"
    if report.not_rebuilt and program.collected:
        yield "problems that cannot be rebuilt are tuned in the program: omit --set after=yes"
    if program.run.exit_code:
        yield f"the program ended with code {program.run.exit_code}"


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


def document_of_program(report: BuildReport) -> dict[str, Any]:
    """Return *report* as JSON values."""
    program = report.program
    assert program is not None
    audit = program.run.audit
    return {
        "path": str(report.path),
        "exit_code": program.run.exit_code,
        "processes": audit.runs,
        "hits": sum(audit.hits.values()),
        "silent": len(audit.silent),
        "not_recorded": audit.failed,
        "from_cache": audit.from_cache,
        "uncovered": dict(audit.uncovered),
        "tuned_in_program": [
            {"key": key, "kind": kind_of(key).name} for key in sorted(program.tuned)
        ],
        "changed_afterwards": program.changed(report.table),
        "left": [{"key": one.key, "kind": one.kind} for one in program.problems],
        "rest": document(report) if program.has_rest else None,
    }
