"""`Lookup`: answers inductor's questions from the rows of a table, and emits an event for each.

It implements `warmup.keys.question.Answers`. It knows neither torch nor how candidates are
measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Protocol

from warmup.core.device import Mismatch
from warmup.core.errors import (
    ContradictionWarning,
    ForeignGraphError,
    MissError,
    MissReason,
    ProblemError,
    UncoveredError,
    WeightChangedError,
)
from warmup.core.events import (
    Benchmarked,
    Contradicted,
    Emitter,
    EventName,
    ForeignGraph,
    FrameSkipped,
    GraphLoaded,
    Hit,
    HookEvent,
    Missed,
    Overruled,
    Scheduled,
    Selected,
    WeightChanged,
    warn,
)
from warmup.core.rows import Row, Search, Winner
from warmup.core.text import counted
from warmup.core.trial import Tuned
from warmup.keys.kind import Linear, Problem
from warmup.keys.question import GemmQuestion, Question, Settings
from warmup.keys.registry import covers, kind_of, linears_of, nearest_row, neighbours_of
from warmup.table.schema import OnMiss, Uncovered

_FUSION_WORDS: Final = {True: "fused", False: "not fused"}

# `cache_tag`: how a table is named in inductor's cache keys and in compiled graphs.

_TAG_PREFIX: Final = "warmup-"


def cache_tag(digest: str, *, tunes: bool = False) -> str:
    """Return the tag of inductor's cache keys and compiled graphs for the table with *digest*.

    Strict and fallback share a tag: a cached graph carries its misses, which strict refuses.
    """
    return f"{_TAG_PREFIX}{digest[:32]}{'-tune' if tunes else ''}"


def shown_tag(tag: str) -> str:
    """Return the digest in *tag*, as short as events have digests, with what follows it."""
    digest, dash, rest = tag.removeprefix(_TAG_PREFIX).partition("-")
    return f"{digest[:16]}{dash}{rest}"


class QuestionMeasurer(Protocol):
    """Measures the candidates of questions; `warmup.tuning.tuner.Tuner` does."""

    def measure(self, question: Question) -> Tuned | None:
        """Return the row; None when no candidate could be measured, or only later."""

    def close(self) -> None:
        """End the processes that were started to measure; closing twice is fine."""


@dataclass
class Lookup:
    """The rows of a table, with a policy for misses and for uncovered measurements.

    With a hard mismatch in ``mismatches`` every lookup is a miss for that reason. Each problem that
    ``tuner`` measures is passed to ``on_tuned`` and is answered from then on. A key for which
    ``retunes`` is true is a miss although it has a row, until it is measured again. A row that is
    not trusted is a miss, and is measured again without its winner. The keys in ``excused`` are not
    measured, and their misses are reported without an error. ``searches`` are those of the table's
    policy.

    Where inductor fused another way than a row says, that is reported, unless ``settles``: whoever
    compiles, a build, chooses other winners for the keys ``differing``, and reports what our own
    code raised, which then refuses no compile.
    """

    rows: Mapping[str, Row]
    on_miss: OnMiss
    emitter: Emitter
    mismatches: tuple[Mismatch, ...] = ()
    on_uncovered: Uncovered = Uncovered.LIBRARY
    tuner: QuestionMeasurer | None = None
    on_tuned: Callable[[Tuned], None] | None = None
    search: Search = Search.DEFAULT
    retunes: Callable[[str], bool] = lambda _key: False
    excused: Collection[str] = ()
    searches: frozenset[str] = frozenset()
    settles: bool = False
    times_kernels: bool = True
    fixes_rows: bool = False
    _tuned_rows: dict[str, Row] = field(default_factory=dict)
    _nearest_rows: dict[str, tuple[str | None, tuple[str, ...]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _differing: dict[str, None] = field(default_factory=dict, init=False)
    _reported: set[str] = field(default_factory=set, init=False)

    @property
    def differing(self) -> Collection[str]:
        """The keys for which inductor fused another way than their rows say."""
        return self._differing

    @cached_property  # over all rows; each kind's hooks read it, and each loaded graph
    def settings(self) -> Settings:
        refuses = self.on_miss is OnMiss.STRICT or self.on_uncovered is Uncovered.FORBID
        return Settings(
            measures=self.measures,
            times_kernels=self.times_kernels,
            search=self.search,
            neighbours=self.neighbours,
            searched=self.searches,
            kinds=frozenset(kind_of(key).name for key in self.rows),
            fixes_rows=self.fixes_rows,
            refuses_foreign=refuses,
            takes_library=self.on_uncovered is Uncovered.LIBRARY,
        )

    @property
    def measures(self) -> bool:
        return self.tuner is not None

    def neighbours(self, problem: Problem) -> Sequence[Winner]:
        with self._lock:
            return neighbours_of(problem.key, {**self.rows, **self._tuned_rows})

    def find(self, problem: Problem) -> Winner | MissReason:
        key = problem.key
        tuned = self._tuned_rows.get(key)
        if tuned is not None:
            return tuned.winner
        rejection = self._rejection()
        if rejection is not None:
            return rejection
        row = self.rows.get(key)
        if row is None or not self._is_current(key):
            return _absence_of(key)
        return row.winner if row.untrusted is None else MissReason.UNTRUSTED

    def measure(self, question: Question) -> Winner | None:
        assert self.tuner is not None
        key = question.problem.key
        if question.makes_row and key in self.excused:
            return None
        if isinstance(question, GemmQuestion) and question.region is not None:
            question = replace(question, known=self._trusted_winners())
        row = self.rows.get(key)
        if row is not None and row.untrusted is not None and row.winner != question.library:
            question = question.without(row.winner)
        tuned = self.tuner.measure(question)
        if tuned is not None and question.makes_row:
            self._keep(tuned)
        return None if tuned is None else tuned.row.winner

    def _trusted_winners(self) -> dict[str, Winner]:
        with self._lock:
            rows = {**self.rows, **self._tuned_rows}
        return {
            key: row.winner
            for key, row in rows.items()
            if self._is_current(key) and row.untrusted is None
        }

    def _keep(self, tuned: Tuned) -> None:
        with self._lock:
            self._tuned_rows[tuned.key] = tuned.row
        kind, winner = kind_of(tuned.key).name, str(tuned.row.winner)
        self.emitter.emit(EventName.TUNED, kind=kind, key=tuned.key, winner=winner)
        if self.on_tuned is not None:
            self.on_tuned(tuned)

    def emit(self, event: HookEvent) -> None:
        match event:
            case Hit(key, winner):
                self.emitter.emit(EventName.HIT, kind=kind_of(key).name, key=key, winner=winner)
            case Missed():
                self._miss(event)
            case Selected() | Benchmarked():
                self._uncovered(event)
            case FrameSkipped(frame, reason):
                self.emitter.emit(EventName.UNCOMPILED, frame=frame, reason=reason)
            case WeightChanged():
                self._weight_changed(event)
            case GraphLoaded(decisions, misses):
                self._graph_loaded(decisions, misses)
            case ForeignGraph(under, installed):
                self._foreign(None if under is None else shown_tag(under), shown_tag(installed))
            case _:
                self._disagreement(event)

    def _disagreement(self, event: Scheduled | Overruled | Contradicted) -> None:
        match event:
            case Scheduled(key, expected, found):
                self._scheduled(key, expected, found)
            case Overruled(option, wanted, found):
                if self._is_first_report(option):
                    self.emitter.emit(EventName.OVERRULED, option=option, table=wanted, found=found)
            case Contradicted(option, expected, found, advice):
                self._contradict(
                    *(option, expected, found),
                    f"inductor option {option} is {found} here, the table was built with "
                    f"{expected}: inductor may not ask for its rows or not use them; "
                    f"{advice or 'remove the setting while the table is installed'}",
                )

    def _miss(self, event: Missed) -> None:
        key, reason, is_strict = event.key, event.reason, self.on_miss is OnMiss.STRICT
        nearest, differs = self._nearest(key, reason)
        self.emitter.emit(
            EventName.MISSED,
            kind=kind_of(key).name,
            key=key,
            reason=reason.value,
            nearest=nearest,
            differs=list(differs),
            choice=None if is_strict else event.choice,
        )
        is_excused = key in self.excused or (self.settles and reason is MissReason.INTERNAL)
        if is_strict and not is_excused:
            raise MissError(key, reason.value, nearest, differs)

    def _uncovered(self, event: Selected | Benchmarked) -> None:
        site = event.site
        choice = event.choice if isinstance(event, Selected) else None
        if isinstance(event, Selected):
            is_reported = choice is not None  # else `Benchmarked` follows
        else:
            is_reported = not (self.measures and covers(site))  # else `TUNED` says it
        if not is_reported:
            return
        refused = choice is None and self.on_uncovered is Uncovered.FORBID
        self.emitter.emit(EventName.UNCOVERED, site=site, refused=refused, choice=choice)
        if refused:
            raise UncoveredError(site)

    def _weight_changed(self, event: WeightChanged) -> None:
        weight, changed, frame = event.weight, event.changed, event.frame
        refused = self.on_miss is OnMiss.STRICT
        self.emitter.emit(
            EventName.CHANGED, weight=weight, changed=changed, frame=frame, refused=refused
        )
        if refused:
            raise WeightChangedError(weight, changed, frame)

    def _graph_loaded(self, decisions: int, misses: int) -> None:
        self.emitter.emit(EventName.CACHED, decisions=decisions, misses=misses)
        if misses and self.on_miss is OnMiss.STRICT:
            decided = f"{counted(misses, 'decision')} of a graph that came from inductor's cache"
            raise MissError(decided, MissReason.CACHED_MISS.value)

    def _foreign(self, under: str | None, here: str) -> None:
        refused = self.settings.refuses_foreign
        self.emitter.emit(EventName.FOREIGN, compiled_under=under, installed=here, refused=refused)
        if refused:
            raise ForeignGraphError(under, here)

    def _scheduled(self, key: str, expected: bool, found: bool) -> None:  # noqa: FBT001  an event's
        if expected == found:
            return
        with self._lock:
            self._differing[key] = None
        if self.settles:
            return
        row_says, done = _FUSION_WORDS[expected], _FUSION_WORDS[found]
        self._contradict(
            *(f"fusion of {key}", row_says, done),
            f"{key}: the row was measured {row_says}, and here inductor compiled the GEMM "
            f"{done}: another kernel runs than was measured; build again, so that the row is "
            "measured in this model",
        )

    def _contradict(self, option: str, expected: str, found: str, message: str) -> None:
        if self._is_first_report(option):
            self.emitter.emit(EventName.CONTRADICTED, option=option, expected=expected, found=found)
            warn(ContradictionWarning(message))

    def _is_first_report(self, option: str) -> bool:
        with self._lock:
            is_first = option not in self._reported
            self._reported.add(option)
        return is_first

    def needs_freezing(self, linears: Iterable[Linear]) -> None:
        """Report a miss for each of *linears* whose frozen form has a row that would be served.

        A MissError in strict serving.
        """
        for linear in linears:
            if (key := self._frozen.get(linear)) is not None:
                reason = self._rejection() or MissReason.NEEDS_FREEZING
                self.emit(Missed(key, reason, "aten"))

    @cached_property
    def _frozen(self) -> dict[Linear, str]:
        trusted = (key for key, row in self.rows.items() if row.untrusted is None)
        return {linear: key for key in trusted for linear in linears_of(key)}

    def close(self) -> None:
        if self.tuner is not None:
            self.tuner.close()

    def _is_current(self, key: str) -> bool:
        return key in self._tuned_rows or not self.retunes(key)

    def _rejection(self) -> MissReason | None:
        hard = [mismatch for mismatch in self.mismatches if mismatch.is_hard]
        if not hard:
            return None
        is_device = any(mismatch.field.startswith("device.") for mismatch in hard)
        return MissReason.WRONG_DEVICE if is_device else MissReason.WRONG_RUNTIME

    def _nearest(self, key: str, reason: MissReason) -> tuple[str | None, tuple[str, ...]]:
        if reason in (MissReason.WRONG_DEVICE, MissReason.WRONG_RUNTIME):
            hard = tuple(str(mismatch) for mismatch in self.mismatches if mismatch.is_hard)
            return key if key in self.rows else None, hard
        if reason in (MissReason.NOT_DESCRIBED, MissReason.INTERNAL):
            return None, ()
        if reason is MissReason.NEEDS_FREEZING:
            return key, ("weight: row frozen, here not",)
        row = self.rows.get(key)
        if row is not None and row.untrusted is not None:
            return key, (f"row {row.winner}, not trusted: {row.untrusted}",)
        if key in self.rows:
            return key, (f"choice: row {self.rows[key].winner}, not built by this torch here",)
        if key not in self._nearest_rows:  # equal layers miss the same key, and the search is slow
            self._nearest_rows[key] = nearest_row(key, self.rows)
        return self._nearest_rows[key]


def _absence_of(key: str) -> MissReason:
    kind = kind_of(key)
    try:
        parts = kind.ingredients(key)
    except ProblemError:
        return MissReason.NOT_DESCRIBED
    is_dynamic = any(".." in parts.get(name, "") for name in kind.ranges)
    return MissReason.DYNAMIC_DIM if is_dynamic else MissReason.NOT_IN_TABLE
