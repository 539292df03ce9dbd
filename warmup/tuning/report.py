"""`Observer` and `BuildReport`: the events of a running build, and the result of a finished one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.core.buckets import Bucket
from warmup.core.device import CallCost, MachineState, Runtime, united
from warmup.core.events import NONE_UNCOMPILED, Uncompiled
from warmup.core.phases import BuildStage, StageSeconds
from warmup.core.roofline import Peaks
from warmup.core.rows import Family, Method, Row
from warmup.core.trial import Tuned
from warmup.table.merge import best_row
from warmup.table.schema import Table
from warmup.table.store import origin_differences, read

if TYPE_CHECKING:
    from warmup.models.padding import Prepared
    from warmup.serving.audit import MissedProblem
    from warmup.serving.bundle import PackedBundle
    from warmup.serving.run import RunReport


# `EarlierRows`: rows of other tables that a build takes in place of measuring (`--rows-from`).

NOT_TRUSTED: Final = "a table does not trust the winner"
MEASURED_WORSE: Final = "the row of another table was measured better"
TEMPLATE_CHANGED: Final = "the source of the winner's template was changed"
MEASURED_AGAIN: Final = "the build measures rows again"


@dataclass(frozen=True, slots=True)
class RowSource:
    """What a build used of the table at ``path``: the keys of rows taken and, by key, why not.

    A table that does not fit is refused with all its rows, else only rows that the build needed are
    taken or refused.
    """

    path: Path
    taken: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many rows were refused, by reason, the most frequent first."""
        return dict(Counter(self.refused.values()).most_common())


class EarlierRows:
    """The rows of *tables*, by path, that may stand in the table *like*; each is taken on request.

    A row may where *templates*, the source of each template of this torch by uid, has that of the
    winner. With *measures_again* no row is taken. ``taken`` has the rows that the build asked for
    and that its table lacked.
    """

    def __init__(
        self,
        tables: Mapping[Path, Table],
        like: Table,
        templates: Mapping[str, str],
        *,
        measures_again: bool = False,
        is_dry: bool = False,
    ) -> None:
        self.is_dry = is_dry
        self.taken: dict[str, Row] = {}
        self._near_tie = like.policy.timing.near_tie
        self._templates = templates
        self._fitting: dict[Path, Table] = {}
        self._sources: dict[str, Path] = {}
        self._refused: dict[Path, dict[str, str]] = {path: {} for path in tables}
        for path, table in tables.items():
            differs = origin_differences(table, like.provenance.runtime, like.policy)
            if measures_again or differs:
                reason = MEASURED_AGAIN if measures_again else "; ".join(differs)
                self._refused[path] = dict.fromkeys(table.rows, reason)
            else:
                self._fitting[path] = table

    def take(self, key: str) -> Row | None:
        """Return the best measured row for *key*, which is taken then; None where none fits."""
        if key in self.taken:
            return self.taken[key]
        rows = {path: each.rows[key] for path, each in self._fitting.items() if key in each.rows}
        current = {path: row for path, row in rows.items() if self._is_current(row)}
        best = best_row([*current.values()], self._near_tie) if current else None
        if best is not None and best.untrusted is None:
            self.taken[key] = best
            self._sources[key] = next(path for path, row in current.items() if row is best)
        for path, row in rows.items():
            if path not in current:
                self._refused[path][key] = TEMPLATE_CHANGED
            elif row.untrusted is not None or key not in self.taken:
                self._refused[path][key] = NOT_TRUSTED
            elif path != self._sources[key]:
                self._refused[path][key] = MEASURED_WORSE
        return self.taken.get(key)

    def used(self, measured: Collection[str] = ()) -> tuple[RowSource, ...]:
        return tuple(
            RowSource(
                path,
                tuple(
                    key
                    for key, source in self._sources.items()
                    if source == path and key not in measured
                ),
                dict(refused),
            )
            for path, refused in self._refused.items()
        )

    def _is_current(self, row: Row) -> bool:
        winner = row.winner
        if winner.family is not Family.TEMPLATE or winner.source_hash is None:
            return True
        return self._templates.get(winner.uid, winner.source_hash) == winner.source_hash


class KnownRows(Mapping[str, Row]):
    """The rows of a table, and an earlier row when a key is looked up that the table lacks."""

    def __init__(
        self, rows: Mapping[str, Row], earlier: EarlierRows, forced: Mapping[str, Row] | None = None
    ) -> None:
        self._rows = rows
        self._earlier = earlier
        self._forced = forced or {}

    def __getitem__(self, key: str) -> Row:
        row = self._forced.get(key) or self._rows.get(key) or self._earlier.take(key)
        if row is None:
            raise KeyError(key)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter({**self._rows, **self._earlier.taken, **self._forced})

    def __len__(self) -> int:
        return len({**self._rows, **self._earlier.taken, **self._forced})


def open_earlier(
    paths: Sequence[str | Path],
    like: Table,
    templates: Callable[[], Mapping[str, str]],
    *,
    measures_again: bool,
    is_dry: bool,
) -> EarlierRows | None:
    """Return the rows of the tables at *paths* that may stand in *like*; None without a path."""
    tables = {Path(path): read(Path(path)) for path in paths}
    if not tables:
        return None
    return EarlierRows(tables, like, templates(), measures_again=measures_again, is_dry=is_dry)


def united_sources(*builds: Iterable[RowSource]) -> tuple[RowSource, ...]:
    found: dict[Path, RowSource] = {}
    for source in (source for sources in builds for source in sources):
        before = found.get(source.path, RowSource(source.path))
        taken = tuple(dict.fromkeys((*before.taken, *source.taken)))
        refused = {**before.refused, **source.refused}
        found[source.path] = replace(
            source, taken=taken, refused={k: why for k, why in refused.items() if k not in taken}
        )
    return tuple(found.values())


NOT_BEGUN: Final = "the budget was spent before it was begun"  # why a key is in ``not_tuned``


class Observer:
    """Receiver of the events of a build. Each method ignores its event unless it is overridden."""

    def said(self, line: str) -> None:
        """Something happened that a reader of the build's log wants to know: *line* says what."""

    def measuring_on(self, here: Runtime, method: Method) -> None:
        """Whatever is measured from now on is measured *here*, by *method*."""

    def time_left(self, seconds: float, part: float) -> None:
        """About so many *seconds* are left, and *part* of the bucket under way is done."""

    def bucket_started(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool
    ) -> None:
        """Run *index* (from 0) of *total* begins: *bucket*, its weights padded or not."""

    def waiting_started(self, reason: str, seconds: float) -> None:
        """The machine is busy for *reason*; the build waits for quiet, at most so many seconds."""

    def problem_given(self, key: str, device: str, total: int) -> None:
        """The problem *key*, one of *total*, was given to *device*, one of several."""

    def problem_lost(self, key: str, device: str, reason: str, *, goes_on: bool) -> None:
        """The worker on *device* was lost with the problem *key*, which another takes over or not.

        With *goes_on* it is taken over.
        """

    def problem_finished(self, tuned: Tuned) -> None:
        """A problem was tuned, and its row is on disk."""

    def rows_tried(self, name: str, rows: int, judgement: CheckedOutput) -> None:
        """The bucket *name* was served from *rows* of its rows, to find the row to blame."""

    def bucket_finished(self, result: BucketResult) -> None:
        """A bucket was tuned, and its output is right."""

    def program_ended(self, run: RunReport, left: int, again: int) -> None:
        """The program of a build has ended, with *left* problems to tune and *again* to measure.

        The terminal was the program's until now.
        """

    def packing_started(self) -> None:
        """The table is complete; its bundle is made now."""


def say_each(observer: Observer, remarks: Iterable[str]) -> None:
    """Report what the device's condition was, before the first or after the last run."""
    for remark in dict.fromkeys(remarks):
        observer.said(f"device: {remark}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOutput:
    """How far outputs are from ``reference``, and the limit: relative L2 of the worst tensor.

    ``eager`` and ``default`` are the errors of eager and of default mode, None where not needed or
    not known; ``remark`` says why.
    """

    error: float
    limit: float
    reference: str = "eager"
    eager: float | None = None
    default: float | None = None
    remark: str = ""

    @property
    def is_right(self) -> bool:
        return math.isfinite(self.error) and self.error <= self.limit

    @property
    def brief(self) -> str:
        return f"error {self.error:.1e} against {self.reference}{self._beside}"

    def __str__(self) -> str:
        remark = f"; {self.remark}" if self.remark else ""
        return (
            f"{self.error:.2e} away from {self.reference} (relative L2), "
            f"limit {self.limit:.2e}{self._beside}{remark}"
        )

    @property
    def _beside(self) -> str:
        others = [
            f"{name} {error:.2e}"
            for name, error in (("eager", self.eager), ("default mode", self.default))
            if error is not None
        ]
        return f" ({', '.join(others)})" if others else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """A finished run of a bucket: its keys in graph order, how many of them were tuned in it, time.

    ``uncovered`` counts measurements that no row covers, by site. ``left_out`` repeated layers were
    not compiled: another bucket has shown that the whole model asks for the same rows. ``graphs``
    is the number of graphs that torch.compile made, and ``uncompiled`` what runs outside of them.
    ``cost`` is that of a call, None on a CPU.
    """

    bucket: Bucket
    keys: tuple[str, ...]
    tuned: int
    judgement: CheckedOutput
    seconds: float
    uncovered: Mapping[str, int] = field(default_factory=dict)
    weights_padded: bool = False
    left_out: int = 0
    graphs: int = 1
    cost: CallCost | None = None
    uncompiled: Uncompiled = NONE_UNCOMPILED

    @property
    def error(self) -> float:
        return self.judgement.error

    @property
    def name(self) -> str:
        return name_of(self.bucket, weights_padded=self.weights_padded)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBucket:
    """What a bucket asks for: the keys with a row, and those to tune."""

    bucket: Bucket
    known: tuple[str, ...]
    missing: tuple[str, ...]
    seconds: float
    graphs: int = 1
    left_out: int = 0
    uncompiled: Uncompiled = NONE_UNCOMPILED

    @property
    def keys(self) -> set[str]:
        return {*self.known, *self.missing}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What a build would do: its buckets, and the problems that have a row or would be tuned."""

    buckets: tuple[PlannedBucket, ...]
    known: tuple[str, ...]
    missing: tuple[str, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """What one of several devices did in a build: how many problems it tuned.

    ``left_out`` is why it took no further problem, empty where it took part until the end.
    """

    name: str
    problems: int
    control_us: float | None = None
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """A program that ran and was recorded for a build.

    ``before`` are the keys that had a row before the program began, and ``rows`` the rows when it
    had ended; ``problems`` were left then. ``collected``: the program measured nothing, and all
    questions were left. Without ``has_rest`` nothing was tuned when it had ended.
    """

    run: RunReport
    before: frozenset[str]
    rows: Mapping[str, Row]
    problems: tuple[MissedProblem, ...]
    collected: bool = False
    has_rest: bool = False

    @property
    def tuned(self) -> set[str]:
        """The keys that the processes of the program measured."""
        return self.rows.keys() - self.before

    def changed(self, final: Table) -> list[str]:
        """Return the keys whose winner another measurement has changed in the table *final*.

        Another kernel follows from such a winner, whose launch config no process has asked for yet.
        """
        return sorted(
            key
            for key, row in self.rows.items()
            if key in final.rows and final.rows[key].winner != row.winner
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResults:
    """What came of the problems of a build, or of a part of it by another process.

    ``timings`` has every candidate of the problems that were tuned, ``peaks`` are those of the
    device. By key with the reason: ``not_rebuilt`` could not be tuned, ``not_tuned`` had no
    measurable candidate (an older row stays), ``not_fused`` was measured bare, ``distrusted`` has a
    row that is not served. ``stages`` says how the seconds divide, summed over all workers.
    """

    timings: tuple[Tuned, ...] = ()
    buckets: tuple[BucketResult, ...] = ()
    not_rebuilt: Mapping[str, str] = field(default_factory=dict)
    not_tuned: Mapping[str, str] = field(default_factory=dict)
    not_fused: Mapping[str, str] = field(default_factory=dict)
    distrusted: Mapping[str, str] = field(default_factory=dict)
    peaks: Peaks | None = None
    machine: MachineState = field(default_factory=MachineState)
    stages: StageSeconds = field(default_factory=dict)

    def results(self) -> dict[str, Any]:
        """Return these fields, without those of a `BuildReport`, by name."""
        return {each.name: getattr(self, each.name) for each in fields(ProblemResults)}


def joined(parts: Sequence[ProblemResults]) -> ProblemResults:
    """Return what came of all *parts* of a build, one after another."""

    def reasons(name: str) -> dict[str, str]:
        return {key: why for part in parts for key, why in getattr(part, name).items()}

    stages = Counter[BuildStage]()
    for part in parts:
        stages.update(part.stages)
    return ProblemResults(
        timings=tuple(one for part in parts for one in part.timings),
        buckets=tuple(one for part in parts for one in part.buckets),
        not_rebuilt=reasons("not_rebuilt"),
        not_tuned=reasons("not_tuned"),
        not_fused=reasons("not_fused"),
        distrusted=reasons("distrusted"),
        peaks=next((part.peaks for part in parts if part.peaks), None),
        machine=united(part.machine for part in parts),
        stages=dict(stages),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport(ProblemResults):
    """A finished build.

    ``buckets`` has a second result where weights were padded as well. Of problems, ``known`` are
    keys that the table had already. ``kept`` has, by key, why a row that was retried is no better,
    so that the older row stays, ``postponed`` the share of its bucket's device time of a key that
    the budget did not let be searched further. ``prepared`` says which weights the second runs
    padded, None when weights were not measured; ``not_bundled`` why a model has no bundle. ``plan``
    is that of a dry run, which has nothing else. With a ``program`` the other fields are about what
    was tuned when it had ended.
    """

    path: Path
    table: Table
    digest: str
    seconds: float
    known: tuple[str, ...] = ()
    prepared: Prepared | None = None
    bundle: PackedBundle | None = None
    not_bundled: str = ""
    retried: frozenset[str] | None = None
    kept: Mapping[str, str] = field(default_factory=dict)
    postponed: Mapping[str, float] = field(default_factory=dict)
    plan: BuildPlan | None = None
    rows_from: tuple[RowSource, ...] = ()
    devices: tuple[DeviceShare, ...] = ()
    program: ProgramRun | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every problem has a row that serving uses, also those of a program."""
        left = self.not_rebuilt or self.not_tuned or self.distrusted
        if self.program is None:
            return not left
        run = self.program.run
        return not (left or run.audit.failed or run.audit.damaged or run.unread)

    @property
    def taken(self) -> tuple[str, ...]:
        return tuple(key for source in self.rows_from for key in source.taken)

    @property
    def uncovered(self) -> Mapping[str, int]:
        return dict(sum((Counter(each.uncovered) for each in self.buckets), Counter[str]()))


def name_of(bucket: Bucket, *, weights_padded: bool = False) -> str:
    """Return the name of *bucket* for people: whether weights are padded."""
    return f"{bucket}, weights padded" if weights_padded else str(bucket)
