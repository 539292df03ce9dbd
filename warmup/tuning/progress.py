"""`Progress`: the table on disk while a build runs, and which of its rows are measured again."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Final, Self

from warmup.core.device import CallCost
from warmup.core.errors import SettingsError, TableError
from warmup.core.phases import BuildStage
from warmup.core.roofline import Peaks
from warmup.core.rows import Effort, Evidence, Flag, Row, Search, evidence_rank
from warmup.core.trial import Tuned, ranking_of
from warmup.keys.registry import kind_of
from warmup.table.schema import Table
from warmup.table.store import TableWriter
from warmup.tuning.report import BucketResult, EarlierRows, KnownRows, Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Revisit:
    """Which problems are measured again although they have a trusted row.

    All with ``all_rows``; those of ``keys``; and rows that were searched less far than ``search``,
    if ``chosen`` has their key (None: any key), until ``deadline`` of `time.monotonic`. With
    ``retried`` only rows of these keys are measured, and replaced by better evidence only.
    """

    all_rows: bool = False
    keys: frozenset[str] = frozenset()
    retried: frozenset[str] | None = None
    search: Search = Search.DEFAULT
    chosen: frozenset[str] | None = None
    deadline: float = math.inf


@dataclass(kw_only=True)
class Progress:
    """The table at ``path`` while a build adds rows to it; each finished problem is on disk.

    At the end of its context, an error and Ctrl-C too, the journal is folded into the table.
    ``replaces``: the first row written replaces the whole table. ``given_up`` has, by key, why a
    problem could not be measured; its existing row stays. ``tuned`` are the measurements of this
    build, in order, ``kept`` why a row that was measured again stays as it was, and ``distrusted``
    why this build does not trust a row; it does not measure these keys again. Methods that write
    raise a TableError where the table cannot be written.
    """

    path: Path
    table: Table
    replaces: bool
    observer: Observer = field(default_factory=Observer)
    can_search: bool = False
    effort: Effort = Effort.SHARE
    given_up: Mapping[str, str] = field(default_factory=dict)
    measured_peaks: Callable[[], Peaks | None] = lambda: None
    revisit: Revisit = field(default_factory=Revisit)
    earlier: EarlierRows | None = None
    tuned: list[Tuned] = field(default_factory=list)
    distrusted: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _replaced: dict[str, Row] = field(default_factory=dict)
    _writer: TableWriter = field(init=False)

    def __post_init__(self) -> None:
        self._writer = TableWriter(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self.replaces or not self.path.exists():
            return
        try:
            self._writer.fold()
        except TableError:  # the rows stay in the journal, and the first error is the one to see
            if error is None:
                raise

    def _add(self, rows: Mapping[str, Row], *, redo: bool = False) -> None:
        table = self.table
        self.table = self._writer.add(table.provenance, table.policy, rows, redo=redo)

    @property
    def rows(self) -> Mapping[str, Row]:
        """The rows on disk; a key without a row takes an earlier table's row, if one fits."""
        return self.rows_with({})

    def rows_with(self, forced: Mapping[str, Row]) -> Mapping[str, Row]:
        if self.earlier is None:
            return {**self.table.rows, **forced} if forced else self.table.rows
        return KnownRows(self.table.rows, self.earlier, forced)

    def flush(self) -> None:
        """Write the rows that were taken from earlier tables to the table on disk."""
        if self.earlier is None or self.earlier.is_dry:
            return
        taken = {k: row for k, row in self.earlier.taken.items() if k not in self.table.rows}
        if taken:
            self._add(taken)

    def receive(self, rows: Mapping[str, Row]) -> None:
        """Write *rows*, which other processes have measured, in place of those of the same keys."""
        if rows:
            self._add(rows, redo=True)

    @property
    def measured(self) -> tuple[Tuned, ...]:
        return tuple({tuned.key: tuned for tuned in self.tuned}.values())

    @property
    def is_done(self) -> bool:
        """Whether this build retries rows, and has measured all of them."""
        retried = self.revisit.retried
        return retried is not None and not any(map(self.must_retune, retried))

    def must_retune(self, key: str) -> bool:
        """Whether *key* has a row, is measured again, and this build has not done so yet."""
        row = self.rows.get(key)
        if row is None or key in self._done or key in self.distrusted or key in self.given_up:
            return False
        revisit = self.revisit
        if revisit.retried is not None:
            return key in revisit.retried
        if row.untrusted is not None or revisit.all_rows or key in revisit.keys:
            return True
        if Flag.OPEN in row.evidence.flags:
            return True
        is_chosen = revisit.chosen is None or key in revisit.chosen
        is_narrower = row.evidence.search.is_narrower_than(revisit.search)
        can_search = self.can_search or row.evidence.search is Search.IMPORTED
        can_search = can_search and kind_of(key).is_searchable
        return is_chosen and is_narrower and can_search and time.monotonic() < revisit.deadline

    def must_tune(self, key: str) -> bool:
        return key not in self.rows or self.must_retune(key)

    def save(self, *tuned: Tuned) -> None:
        """Write the rows of finished problems, with their rankings, to the table on disk.

        A row that is retried, and has better evidence than the new row, stays.
        """
        known = self.rows
        ranked = {one.key: one.with_evidence(ranking=ranking_of(one)) for one in tuned}
        if self.table.provenance.peaks is None:
            origin = replace(self.table.provenance, peaks=self.measured_peaks())
            self.table = replace(self.table, provenance=origin)
        before = {key: row for key in ranked if (row := known.get(key)) is not None}
        for key, row in before.items():
            if key not in self.keys_since(0):
                self._replaced[key] = row
            reason = self._why_kept(ranked[key].row.evidence, row.evidence)
            if reason is not None and row.untrusted is None:
                self.kept[key] = reason
                ranked[key] = replace(ranked[key], row=row)
        rows = {key: one.row for key, one in ranked.items()}
        self._done.update(rows)
        if self.replaces and rows:  # another device's table, with --force: kept until a new row
            self.table = self._writer.write(replace(self.table, rows=rows))
            self.replaces = False
        elif rows:
            self._add(rows, redo=bool(before))
        for one in ranked.values():
            self.tuned.append(one)
            self.observer.problem_finished(one)

    def _why_kept(self, new: Evidence, old: Evidence) -> str | None:
        near_tie = self.table.policy.timing.near_tie
        is_better = evidence_rank(new, near_tie) <= evidence_rank(old, near_tie)
        if is_better or self.revisit.retried is None:
            return None
        spreads = f"spread {new.spread or 0:.1%}, and {old.spread or 0:.1%} in the table"
        return f"the new times are {'unstable too' if new.is_unstable else 'worse'} ({spreads})"

    def settle(self, keys: Collection[str]) -> None:
        """Let the rows of *keys*, whose regions are not worth measuring, stay as they are."""
        settled = [_settled(one) for one in self.tuned if one.key in keys]
        if settled:
            self._add({one.key: one.row for one in settled}, redo=True)
            self.tuned[:] = [_settled(one) if one.key in keys else one for one in self.tuned]

    def keep_cost(self, name: str, cost: CallCost) -> None:
        table = self.table
        self.table = replace(table, provenance=table.provenance.costing([(name, cost)]))
        if not self.replaces and self.rows:
            self._add({})

    def refresh(self) -> bool:
        """Take the rows that other writers have added; return whether there may be any."""
        table = self._writer.refresh()
        if table is not None:
            self.table = table
        return table is not None

    def keys_since(self, since: int) -> set[str]:
        return {tuned.key for tuned in self.tuned[since:]}

    def discard(self, keys: Collection[str], since: int) -> None:
        """Remove the rows of *keys*, measured from number *since* on; restore replaced rows."""
        self.tuned[since:] = [tuned for tuned in self.tuned[since:] if tuned.key not in keys]
        before = {key: row for key, row in self._replaced.items() if key in keys}
        if keys:
            self.table = self._writer.remove(keys)
        if before:
            self._add(before)

    def distrust(self, keys: Collection[str], reason: str) -> None:
        """Mark the rows of *keys* as not trusted for *reason*; their evidence stays on disk."""
        marked = {key: replace(self.rows[key], untrusted=reason) for key in keys}
        self.table = self._writer.distrust(marked)
        self.distrusted |= dict.fromkeys(keys, reason)

    def measure_again(self, keys: Collection[str]) -> None:
        self.revisit = replace(self.revisit, keys=self.revisit.keys | frozenset(keys))
        self.reopen(keys)

    def reopen(self, keys: Collection[str]) -> None:
        """Allow *keys* to be measured once more by this build."""
        self._done.difference_update(keys)


def _settled(tuned: Tuned) -> Tuned:
    flags = (flag for flag in tuned.row.evidence.flags if flag is not Flag.OPEN)
    return tuned.with_evidence(flags=tuple(flags))


# `BuildEstimate`: how long a build will still take, and whether its budget is spent.

# Of one item before any was measured, on an H200.
_PRIOR_S: Final = {
    BuildStage.COMPILING: 30.0,
    BuildStage.BARE_TRIALS: 1.5,
    BuildStage.FUSED_TRIALS: 4.0,
    BuildStage.LAUNCH_SEARCHES: 1.5,
    BuildStage.REGIONS: 14.0,
}
# Of one item without which a bucket has no table: of a search the listed candidates.
_NEEDED: Final = (BuildStage.COMPILING, BuildStage.BARE_TRIALS)
_LISTED_S: Final = 0.4
_LATER_COMPILE: Final = 0.45  # of the first of a bucket, in which kernels are compiled ahead
_LATER_BUCKET: Final = 0.7  # of the first bucket
_MOST_OF_BUCKET: Final = 0.95  # the output is judged after the last item


@dataclass(slots=True)
class BuildEstimate:
    """How long a build will still take: the items that its bucket has left, at their mean seconds.

    Compiles and buckets take what those after the first took, or a share of the first. ``report``
    gets the seconds left and the part of the bucket that is done, whenever an item is, once it is
    known what the bucket has. Nothing is searched further that would not let the bucket end at
    ``ends``, by ``now``; ``postponed`` has the share of the bucket's device time of each such key.
    The build searches those further until ``until``. With ``packs`` it compiles each bucket once
    more for its bundle.
    """

    report: Callable[[float, float], None] = lambda _seconds, _part: None
    now: Callable[[], float] = time.monotonic
    ends: float = math.inf
    until: float = math.inf
    postponed: dict[str, float] = field(default_factory=dict)
    packs: bool = False
    _left: dict[BuildStage, int] = field(default_factory=dict)
    _spent: dict[BuildStage, list[float]] = field(default_factory=dict)
    _buckets_left: int = 0
    _began: float = 0.0
    _buckets_s: list[float] = field(default_factory=list)

    def bucket_started(self, left: int) -> None:
        """Begin a bucket, *left* after which there are."""
        self._left, self._buckets_left, self._began = {}, left, self.now()

    def bucket_finished(self) -> None:
        self._buckets_s.append(self.now() - self._began)

    def expect(self, items: Mapping[BuildStage, int]) -> None:
        """Note how many items of some stages the bucket has left."""
        self._left.update(items)

    def done(self, stage: BuildStage, seconds: float) -> None:
        self._spent.setdefault(stage, []).append(seconds)
        if not self._left:
            return
        self._left[stage] = max(self._left.get(stage, 0) - 1, 0)
        of_bucket = sum(count * self._seconds_of(stage) for stage, count in self._left.items())
        of_bucket = min(of_bucket, max(self._needed_s, self.ends - self.now()))
        gone = self.now() - self._began
        further = _later_s((*self._buckets_s, gone + of_bucket), _LATER_BUCKET)
        part = gone / (gone + of_bucket) if of_bucket else 1.0
        left = of_bucket + self._buckets_left * further
        if self.postponed and self.until < math.inf:
            left = max(self.until - self.now(), self._needed_s)
        if self.packs:
            buckets = len(self._buckets_s) + 1 + self._buckets_left
            left += buckets * self._seconds_of(BuildStage.COMPILING)
        self.report(left, min(part, _MOST_OF_BUCKET))

    @property
    def is_limited(self) -> bool:
        return min(self.until, self.ends) < math.inf

    @property
    def is_over(self) -> bool:
        return self.now() + self._needed_s >= self.ends

    @property
    def _needed_s(self) -> float:
        listed_s = _LISTED_S * self._left.get(BuildStage.LAUNCH_SEARCHES, 0)
        return listed_s + sum(self._left.get(one, 0) * self._seconds_of(one) for one in _NEEDED)

    def _seconds_of(self, stage: BuildStage) -> float:
        spent = self._spent.get(stage) or [_PRIOR_S.get(stage, 0.0)]
        is_compile = stage is BuildStage.COMPILING
        return _later_s(spent, _LATER_COMPILE) if is_compile else fmean(spent)


def _later_s(seconds: Sequence[float], share: float) -> float:
    first, *later = seconds
    return fmean(later) if later else share * first


# `SearchBudget`: how far a build searches for candidates, and for how long.

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_TIME_LIMIT: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smh]?)")
# Estimated candidates beyond those of the default: an exhaustive search tries 400 to 2300.
_ADDED: Final[Mapping[Search, int]] = {Search.WIDE: 40, Search.EXHAUSTIVE: 800}
_CANDIDATE_S: Final = 0.5  # estimated seconds to compile and measure one, without measured ones

RunAgain = Callable[[BucketResult, int, int], BucketResult]


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How far to search; with ``seconds``, only until so much time has passed since the start."""

    search: Search
    seconds: float | None = None

    @property
    def limits_all(self) -> bool:
        """Whether the whole build ends with the budget, not a wider search alone."""
        return self.search is Search.DEFAULT and self.seconds is not None


def parse_budget(search: str, budget: str | float | None) -> SearchBudget:
    """Return the budget of ``--search``, such as ``wide``, and ``--budget``, such as ``20m``."""
    words = [word for word in Search if word is not Search.IMPORTED]
    if search not in words:
        raise SettingsError(f"--search {search!r} is unknown", f"use one of {', '.join(words)}")
    if budget is None:
        return SearchBudget(Search(search))
    return SearchBudget(Search(search), parse_seconds(budget, "--budget"))


def parse_seconds(time_limit: str | float, option: str) -> float:
    """Return *time_limit*, such as ``20m`` or seconds, in seconds; *option* names it in errors."""
    match = _TIME_LIMIT.fullmatch(time_limit.strip()) if isinstance(time_limit, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else time_limit
    if isinstance(seconds, str) or not 0 <= seconds < math.inf:
        raise SettingsError(f"{option} {time_limit!r} is no time", "write 90s, 20m or 2h")
    return seconds


def spend_budget(
    progress: Progress,
    estimate: BuildEstimate,
    run_again: RunAgain,
    results: Sequence[BucketResult],
    budget: SearchBudget,
) -> tuple[BucketResult, ...]:
    """Search further until *estimate* says; return *results* with the runs added."""
    # Problems that may gain most come first. By a wider search those are the ones that take longest
    # and are furthest from the device's peaks, as many as are likely to fit into the time left; a
    # bucket that was begun is finished. By the default search they are those that were postponed,
    # and each bucket gets the part of the time that its problems have of the device's, if it can be
    # compiled in it. ``run_again(result, number, total)`` runs the bucket of a result once more.
    assert budget.seconds is not None
    deadline = estimate.until
    if budget.limits_all:
        keys = tuple(sorted(estimate.postponed, key=lambda key: (-estimate.postponed[key], key)))
    else:
        tuned = [problem for problem in progress.tuned if kind_of(problem.key).is_searchable]
        tried = sum(problem.row.evidence.tried for problem in tuned)
        now = time.monotonic()
        candidate_s = (now - deadline + budget.seconds) / tried if tried else _CANDIDATE_S
        limit = (deadline - now) / (candidate_s * _ADDED[budget.search])
        keys = choose_keys(results, progress.rows, budget.search, limit)
    updated = list(results)
    order = sorted(range(len(updated)), key=lambda index: _first_position(keys, updated[index]))
    for number, index in enumerate(order):
        before, now = updated[index], time.monotonic()
        chosen = frozenset(keys) & frozenset(before.keys)
        if budget.limits_all:
            own_us, *others_us = (_postponed_us(updated[e], estimate) for e in order[number:])
            part_s = (deadline - now) * own_us / (own_us + sum(others_us) or 1)
            estimate.ends = now + max(part_s, before.seconds)
        if chosen and now < deadline and not deadline < estimate.ends < math.inf:
            progress.revisit = Revisit(search=budget.search, chosen=chosen, deadline=deadline)
            progress.reopen(chosen)
            after = run_again(before, number, len(order))
            updated[index] = replace(
                after, tuned=before.tuned + after.tuned, seconds=before.seconds + after.seconds
            )
    return tuple(updated)


def _postponed_us(result: BucketResult, estimate: BuildEstimate) -> float:
    device_us = 1.0 if result.cost is None else result.cost.device_us
    return device_us * sum(estimate.postponed.get(key, 0.0) for key in result.keys)


def choose_keys(
    results: Sequence[BucketResult], rows: Mapping[str, Row], search: Search, limit: float
) -> tuple[str, ...]:
    keys = dict.fromkeys(
        key for result in results for key in result.keys if kind_of(key).is_searchable
    )
    narrower = [key for key in keys if rows[key].evidence.search.is_narrower_than(search)]
    ranked = sorted(narrower, key=lambda key: (-_gain_us(rows[key].evidence), key))
    return tuple(ranked[: max(0, int(limit))])


def _gain_us(evidence: Evidence) -> float:
    """Return the most that a better kernel could save: the time above that at the peaks, in us."""
    bare_us = evidence.bare_us or evidence.time_us
    return bare_us * (1 - min(evidence.peak_share or 0.0, 1.0))


def _first_position(keys: Sequence[str], result: BucketResult) -> int:
    own = set(result.keys)
    return next((i for i, key in enumerate(keys) if key in own), len(keys))
