"""What a build prints: its progress on stderr, and its report or plan as text and as JSON.

`BuildProgress` is the observer of `warmup build`, `LiveLine` shows the progress of `compare` too.
"""

from __future__ import annotations

import datetime as dt
import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.table import Column
from rich.text import Text

from warmup.bench.compare import CompareProgress
from warmup.cli.options import is_quiet, is_verbose
from warmup.cli.output import grid, record, say, spell_cost, spell_peaks, wrapped
from warmup.cli.tables import ROW_HEAD, UNSTABLE_MARK, row_cells, spell_limits
from warmup.core.buckets import Bucket
from warmup.core.device import MachineState
from warmup.core.events import Uncompiled, in_brackets, selections
from warmup.core.rows import SHARE_FLAGS, Flag, Rejection, Row, lag_behind_library, search_to_json
from warmup.core.text import counted, printable
from warmup.core.trial import Outcome, Tuned
from warmup.keys.kind import Kind, natural_order
from warmup.keys.registry import KINDS, kind_of
from warmup.measuring.selection import rejections, worst_regret_over_bound
from warmup.tuning.report import BucketResult, BuildReport, CheckedOutput, Observer, name_of

if TYPE_CHECKING:
    from warmup.serving.run import RunReport

_SILENT_S: Final = 60.0  # without a line on a stream that is no terminal
_LONGEST_S: Final = 1e6  # of a command, for all of which the rate of its units is known


class StepColumn(ProgressColumn):
    """The step, cut where the terminal has no room: the columns behind it are whole."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class DoneColumn(ProgressColumn):
    """``1 of 4 buckets, 0:21 so far, about 1:03 left``, as the command says or at its rate."""

    def __init__(self, units: str) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._units = units

    def render(self, task: Task) -> Text:
        words, ends = [f"{_clock(task.elapsed or 0.0)} so far"], task.fields.get("ends")
        if task.total is not None and task.total > 1:
            words.insert(0, f"{int(task.completed)} of {task.total:.0f} {self._units}")
        left = task.time_remaining if ends is None else ends - task.get_time()
        if left and left > 0:
            words.append(f"about {_clock(left)} left")
        return Text(", ".join(words))


def _clock(seconds: float) -> str:
    return str(dt.timedelta(seconds=int(seconds))).removeprefix("0:").removeprefix("0")


class LiveLine(AbstractContextManager["LiveLine"], CompareProgress):
    """The live line of a command: its step, the *units* done, the time so far and the time left.

    On a stream that is no terminal the lines of `print_above` appear, and after a minute without
    one what the live line would show: the log of a container says that the command goes on.
    """

    def __init__(self, units: str) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._column, self._printed_at = DoneColumn(units), time.monotonic()
        self._progress = Progress(
            *(SpinnerColumn(), StepColumn(), BarColumn(bar_width=8), DoneColumn(units)),
            console=self._console,
            transient=True,
            disable=is_quiet() or not self._console.is_terminal,
            speed_estimate_period=_LONGEST_S,
        )
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(
        self,
        step: str | None = None,
        *,
        done: float | None = None,
        total: int | None = None,
        left_s: float | None = None,
    ) -> None:
        known: dict[str, Any] = {}
        if left_s is not None:
            known["ends"] = self._progress.get_time() + left_s
        self._progress.update(self._task, description=step, completed=done, total=total, **known)
        is_silent = time.monotonic() - self._printed_at >= _SILENT_S
        if is_silent and not self._console.is_terminal:
            task = self._progress.tasks[self._task]
            self.print_above(f"{task.description}: {self._column.render(task).plain}")

    def print_above(self, line: str) -> None:
        self._printed_at = time.monotonic()
        if not is_quiet():
            self._console.print(printable(line), soft_wrap=True)


class BuildProgress(LiveLine, Observer):
    """Progress of a build; buckets with padded weights count from 0 again."""

    def __init__(self, *, of_program: bool = False) -> None:
        super().__init__("buckets")
        self._of_program = of_program
        self._problems = self._buckets = 0
        self._bucket = "starting"

    def __enter__(self) -> Self:
        return self if self._of_program else super().__enter__()

    def program_ended(self, run: RunReport, left: int, again: int) -> None:
        then = [f"{counted(left, 'problem')} left to tune"] if left else []
        then += [f"{counted(again, 'unstable row')} to measure again"] if again else []
        words = ", ".join(then) or "nothing left to tune"
        say(f"warmup build: the program ended with code {run.exit_code}; {words}")
        if then:  # the terminal was the program's until now
            super().__enter__()

    def said(self, line: str) -> None:
        self.print_above(line)

    def time_left(self, seconds: float, part: float) -> None:
        self.show(done=self._buckets + part, left_s=seconds)

    def bucket_started(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool
    ) -> None:
        self._bucket = name_of(bucket, weights_padded=weights_padded)
        self._buckets = index
        self.show(self._bucket, done=index, total=total)

    def waiting_started(self, reason: str, seconds: float) -> None:
        self.print_above(
            f"{reason}: waiting up to {seconds:.0f} s for quiet (--set wait_for_quiet=0 does not)"
        )

    def problem_given(self, key: str, device: str, total: int) -> None:
        self._bucket = device
        self.show(f"{device}: {key.partition(' ')[0]}", total=total)

    def problem_lost(self, key: str, device: str, reason: str, *, goes_on: bool) -> None:
        then = "another worker takes over" if goes_on else "given up"
        self.print_above(f"the worker on {device} {reason}; {then}: {key}")

    def problem_finished(self, tuned: Tuned) -> None:  # noqa: ARG002  an observer's parameter
        self._problems += 1
        self.show(f"{self._bucket}: {counted(self._problems, 'problem')} tuned")

    def bucket_finished(self, result: BucketResult) -> None:
        self._buckets += 1
        self.show(done=self._buckets)
        left_out = counted(result.left_out, "repeated layer")
        known = len(result.keys) - result.tuned
        counts = f"{result.tuned} tuned, {known} in the table already"
        self.print_above(
            f"{result.name}: {counts if result.keys else 'nothing tuned, no row served'}, "
            f"{result.judgement.brief}, {result.seconds:.1f} s"
            + (f", without {left_out}" if result.left_out else "")
            + (f"; {spell_cost(result.cost)}" if result.cost is not None else "")
        )

    def rows_tried(self, name: str, rows: int, judgement: CheckedOutput) -> None:
        verdict = "right" if judgement.is_right else "wrong"
        self.print_above(f"{name}: {verdict} with {counted(rows, 'row')}: {judgement.error:.2e}")

    def packing_started(self) -> None:
        self.show("packing the bundle")

    def interrupted(self) -> None:
        self.__exit__(None, None, None)
        say(
            f"interrupted: {counted(self._problems, 'problem')} tuned now, kept in the table; "
            "run the same command again to tune the rest"
        )


RETRY: Final = "add --retry unstable to this command"
MEASURE_ALL: Final = "add --retry all to this command, which measures every problem again"
UNDECIDED: Final = (
    "warmup build: no row measured now could be decided (exit code 4); the table can be served, "
    "with the library's kernels"
)
_MAX_LISTED: Final = 20  # flagged rows, rejected candidates, and problems of a plan


def spell_belief(report: BuildReport, remedy: str = RETRY) -> Iterator[str]:
    """Yield whether the times of a build can be believed, unstable rows, and what a retry did."""
    rows, machine = report.table.rows, report.machine
    now = {one.key for one in report.timings}
    asked = now.union(*(one.keys for one in report.buckets), report.known, report.retried or ())
    asked = asked.union(report.not_tuned).intersection(rows)
    unstable = sorted(key for key in asked if rows[key].evidence.is_unstable)
    others = sum(row.evidence.is_unstable for row in rows.values()) - len(unstable)
    if machine.measured:
        yield f"times of this build {_belief(machine, len(now.intersection(unstable)), len(now))}"
    unmarked = [key for key in unstable if kind_of(key).summary is not None]  # listed in no grid
    yield from _first([f"row flagged {Flag.UNSTABLE}: {key}" for key in unmarked], "such rows")
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
        invariant = report.table.policy.invariant
        yield _unstable_rows(len(unstable), len(asked), remedy, has_library=not invariant)


def _unstable_rows(unstable: int, rows: int, remedy: str, *, has_library: bool) -> str:
    kept = "the library's kernel" if has_library else "a kernel with the digest of its weight"
    return (
        f"{unstable} of {counted(rows, 'row')} unstable (marked {UNSTABLE_MARK}): such a row has "
        f"{kept} for want of better times; to measure it again on a quiet machine, "
        f"{remedy} (`warmup show TABLE --review` lists the times that cannot be true)"
    )


def is_undecided(rows: Mapping[str, Row], measured: Collection[str]) -> bool:
    flags = [rows[key].evidence.is_unstable for key in measured if key in rows]
    return bool(flags) and all(flags)


def _belief(machine: MachineState, unstable: int, measured: int) -> str:
    reasons, load = [*machine.complaints], ""
    if machine.worst_share is not None:
        load = f"other processes took up to {machine.worst_share:.0%} of {machine.cpus:g} CPUs"
    if machine.disturbed:
        reasons += [f"{load}, too much in {machine.disturbed} of {machine.measured} measurements"]
    if unstable:
        reasons.append(f"{unstable} of {counted(measured, 'row')} measured now unstable")
    if reasons:
        return f"are doubtful: {'; '.join(reasons)}"
    seen = [*machine.notes, *filter(None, [load])] or ["no disturbance of the GPU was seen"]
    return f"can be believed: {'; '.join(seen)}"


def _first(lines: list[str], what: str) -> Iterator[str]:
    yield from lines[:_MAX_LISTED]
    if len(lines) > _MAX_LISTED:
        yield f"{len(lines) - _MAX_LISTED} more {what}"


_EXPECTED: Final = {None, Rejection.COMPILE, Rejection.LAUNCH}  # a config too large for the device


def spell(report: BuildReport, remedy: str = RETRY) -> Iterator[str]:
    """Yield where the table is, if its times can be believed, rows by bucket, what to look at."""
    yield _verdict(report)
    yield from spell_belief(report, remedy)
    yield from grid(("bucket", "op", "epilogue", *ROW_HEAD), _rows(report), texts=4)
    asked = {key for result in report.buckets for key in result.keys}
    for kind in KINDS.values():
        own = [report.table.rows[key] for key in asked if kind_of(key) is kind]
        if own and kind.summary is not None:
            yield f"{len(own)} {kind.summary}{_mean_gain(own, kind)}"
    known = [report.table.rows[key].evidence for key in asked]
    if known and not any(one.library_us and one.time_us < one.library_us for one in known):
        yield "no row is faster here than the library's kernel: a server gains its start alone"
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
    yield from spell_limits(costs)
    for share in report.devices:
        control = f", control problem {share.control_us:.1f} us" if share.control_us else ""
        left = f"; left out: {share.left_out}" if share.left_out else ""
        yield f"{share.name}: {counted(share.problems, 'problem')}{control}{left}"
    yield from _doubts(report)
    yield from _outcome(report)


def _rows(report: BuildReport) -> Iterator[Sequence[str]]:
    listed: set[tuple[Bucket, str]] = set()
    for result in report.buckets:
        for key in result.keys:
            if kind_of(key).summary is None and (result.bucket, key) not in listed:
                listed.add((result.bucket, key))
                yield result.name, *_row(key, report.table.rows[key])


def _row(key: str, row: Row) -> Sequence[str]:
    kind = kind_of(key)
    question = kind.ingredients(key).get(kind.question or "", kind.name)
    return kind.brief(key), question, *row_cells(row)


def _mean_gain(rows: list[Row], kind: Kind) -> str:
    found = [row.evidence for row in rows]
    ratios = [one.library_us / one.time_us for one in found if one.library_us]
    if not ratios:
        return ""
    return f", {statistics.geometric_mean(ratios):.2f}x over {kind.library_default}"


def _doubts(report: BuildReport) -> Iterator[str]:
    for flag in SHARE_FLAGS:
        keys = [one.key for one in report.timings if flag in one.row.evidence.flags]
        yield from _first([f"row flagged {flag}: {key}" for key in keys], f"rows flagged {flag}")
    for split in _splits(report):
        count, verb = len(split["keys"]), "is" if len(split["keys"]) == 1 else "are"
        yield (
            f"{split['bucket']}: {counted(count, 'row')} {verb} up to {split['ratio']:.2f}x as "
            f"slow as the best at size {split['size']}: add the bucket {split['add']}"
        )
    yield from _slower_at_largest({one.key: one.row for one in report.timings})
    unexpected = [
        f"candidate rejected ({one.rejection}): {one.winner.short} for {tuned.key}: {one.said}"
        for tuned in report.timings
        for one in (outcome.refused for outcome in tuned.timings)
        if one.rejection not in _EXPECTED
    ]
    yield from _first(unexpected, "rejected candidates; --json prints all")


def _slower_at_largest(rows: Mapping[str, Row]) -> Iterator[str]:
    behind = [
        f"{row.winner.short} takes {ratio:.2f}x the library's time at size "
        f"{row.evidence.along[-1][0]}, and was chosen since the library loses more, or fails, "
        f"at another size of the range: {key}"
        for key, row in rows.items()
        if (ratio := lag_behind_library(row.evidence)) is not None
    ]
    yield from _first(behind, "rows that are slower at the largest size of their range")


def _verdict(report: BuildReport) -> str:
    counts = sorted(rejections(report.timings).items())
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts)
    rejected = f" (rejected candidates: {reasons})" if reasons else ""
    known = f"{len(report.known)} in the table already, " if report.known else ""
    known += f"{len(report.taken)} from earlier tables, " if report.taken else ""
    rows = counted(len(report.table.rows), "row")
    return (
        f"{report.path}: {rows}, {len(report.timings)} tuned now{rejected}, "
        f"{known}{report.seconds:.1f} s, digest {report.digest[:16]}"
    )


def _outcome(report: BuildReport) -> Iterator[str]:
    yield from _sources(report)
    if report.stages and is_verbose():
        spent = ", ".join(f"{stage.label} {taken:.1f}" for stage, taken in report.stages.items())
        yield from wrapped(
            f"seconds by stage (docs/explanation/search.md#seconds-of-a-build): {spent}"
        )
    if not (report.timings or report.not_tuned or report.not_rebuilt):
        some = ", some of them from earlier tables" if report.taken else ""
        yield from wrapped(f"nothing to tune: every problem had its row{some}")
    if report.postponed:
        share = min(sum(report.postponed.values()) / max(1, len(report.buckets)), 1.0)
        left = counted(len(report.postponed), "problem")
        yield from wrapped(
            f"the budget was spent: {left} with {share:.1%} of the device time can be searched "
            "further: run the same command again"
        )
    if report.bundle is not None:
        yield f"bundle (compiled kernels; docs/how-to/ship-a-bundle.md) {report.bundle}"
    if report.not_bundled:
        yield f"no bundle, so that a start compiles its kernels: {report.not_bundled}"
    for what, keys in (
        ("not rebuilt", report.not_rebuilt),
        ("not tuned", report.not_tuned),
        ("not trusted, not served", report.distrusted),
        ("timed alone, not as it will run", report.not_fused),
    ):
        yield from (f"{what}: {key}: {reason}" for key, reason in keys.items())


def _splits(report: BuildReport) -> list[dict[str, Any]]:
    from warmup.models.inputs import sizes_within  # needs torch, which a build has loaded

    found: list[dict[str, Any]] = []
    for result in report.buckets:
        rows = ((key, report.table.rows[key]) for key in result.keys)
        over = {key: worst for key, row in rows if (worst := worst_regret_over_bound(row.evidence))}
        if over and (within := sizes_within(result.bucket)):
            size, ratio = max(over.values(), key=lambda worst: worst[1])
            split = {"bucket": result.name, "keys": [*over], "add": within[-1]}
            found.append({**split, "size": size, "ratio": ratio})
    return found


def document(report: BuildReport) -> dict[str, Any]:
    """Return the record of *report*, with the medians of candidates; of the table counts alone."""
    rows = report.table.rows
    return {
        **record(report, without=("table", "timings", "prepared", "plan")),
        "rows": len(rows),
        "unstable": sorted(key for key, row in rows.items() if row.evidence.is_unstable),
        "buckets": [record(result, "error") for result in report.buckets],
        "problems": [
            {
                "key": tuned.key,
                "winner": str(tuned.row.winner),
                "searched": tuned.searched and search_to_json(tuned.searched),
                "candidates": [*map(_candidate, tuned.timings)],
            }
            for tuned in report.timings
        ],
        "splits": record(_splits(report)),
    }


def _candidate(one: Outcome) -> dict[str, Any]:
    own = one.fused or one
    return {
        "choice": str(one.winner),
        "time_us": one.time_us,
        "fused_us": one.fused_us,
        "spread": None if own.samples is None else own.samples.spread,
        "rejection": record(one.refused.rejection),
        "said": one.refused.said,
        "along_us": dict(one.along_us),
    }


def spell_plan(report: BuildReport) -> Iterator[str]:
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
    yield from _first([f"to tune: {key}" for key in plan.missing], "to tune; --json has all")
    yield from plan.remarks
    known = f"{len(plan.known)} in the table already"
    known += f" or in earlier tables ({len(report.taken)})" if report.taken else ""
    yield f"{report.path}: {counted(len(plan.missing), 'problem')} to tune, {known}"
    yield from _sources(report)
    yield f"dry run: nothing was measured or written; it took {report.seconds:.1f} s"


def _sources(report: BuildReport) -> Iterator[str]:
    for source in report.rows_from:
        reasons = "; ".join(f"{count} refused: {why}" for why, count in source.reasons.items())
        taken = f"rows from {source.path}: {len(source.taken)} taken"
        yield from wrapped(f"{taken}{', ' if reasons else ''}{reasons}")


def spell_graphs(bucket: str, graphs: int, uncompiled: Uncompiled) -> Iterator[str]:
    lines = list(uncompiled.lines())
    if graphs > 1:
        lines.insert(
            0,
            f"the model breaks into {graphs} graphs; branches that these inputs do not take are "
            "not built (TORCH_LOGS=graph_breaks says more)",
        )
    for line in lines:
        yield from wrapped(f"{bucket}: {line}")


def document_of_plan(report: BuildReport) -> dict[str, Any]:
    shared = {"path": str(report.path), "seconds": report.seconds}
    return {**record(report.plan), **shared, "rows_from": record(report.rows_from)}


_GIVEN_AGAIN: Final = "give the same command again"


def spell_program(report: BuildReport) -> Iterator[str]:
    program = report.program
    assert program is not None
    rows, again = program.rows, {one.key for one in report.timings}
    own = sorted(program.tuned - again, key=natural_order)
    if tuned := {key: rows[key] for key in own}:
        yield "tuned in the program:"
        yield from _tuned_rows(tuned)
        yield from _slower_at_largest(tuned)
    if report.timings or report.not_rebuilt or report.not_tuned:
        yield "tuned when the program had ended:"
        yield from spell(report, _GIVEN_AGAIN)
    else:
        if unstable := sum(row.evidence.is_unstable for row in rows.values()):
            yield _unstable_rows(unstable, len(rows), _GIVEN_AGAIN, has_library=True)
        words = f"{counted(len(rows), 'row')}, {len(own)} tuned now"
        yield f"{report.path}: {words if rows else 'no rows: nothing was asked'}"
    if changed := program.changed(report.table):
        yield (
            f"{counted(len(changed), 'decision')} changed when the program had ended, and kernels "
            f"with them: {_GIVEN_AGAIN}, which tunes these kernels"
        )
    audit = program.run.audit
    rare = {"graphs from a cache": audit.from_cache, "not recorded": audit.failed}
    rare["unreadable event lines"] = audit.damaged
    parts = [
        f"processes {audit.runs}",
        f"hits {sum(audit.hits.values())}",
        f"tuned in the program {len(program.tuned)}",
        f"left for the end {len(program.problems)}",
        f"silent {len(audit.silent)}",
        *([f"uncovered{in_brackets(audit.uncovered)}"] if audit.uncovered else []),
        *(f"{what} {count}" for what, count in rare.items() if count),
    ]
    yield from wrapped(f"program: {', '.join(parts)} (docs/how-to/build-from-a-program.md)")
    if program.run.unread:
        yield f"the log of the program was not read to its end ({program.run.unread})"
    if report.not_rebuilt and program.collected:
        yield "problems that cannot be rebuilt are tuned in the program: omit --set after=yes"
    if program.run.exit_code:
        yield f"the program ended with code {program.run.exit_code}"


def _tuned_rows(rows: Mapping[str, Row]) -> Iterator[str]:
    kinds = {key: kind_of(key) for key in rows}
    listed = [
        (kind.ingredients(key).get("m", ""), *_row(key, rows[key]))
        for key, kind in kinds.items()
        if kind.summary is None
    ]
    if listed:
        yield from grid(("m", "op", "epilogue", *ROW_HEAD), listed, texts=4)
    counts = Counter(kind.summary for kind in kinds.values() if kind.summary is not None)
    yield from (f"{count} {summary}" for summary, count in counts.items())


def document_of_program(report: BuildReport) -> dict[str, Any]:
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
