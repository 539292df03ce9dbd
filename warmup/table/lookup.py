"""`Lookup`: answers inductor's questions from the rows of a table, and emits an event for each.

It implements `warmup.keys.question.Answers`. It knows rows and keys, and neither torch nor how
candidates are measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
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
from warmup.core.events import Emitter, EventName, warn
from warmup.core.method import Search
from warmup.core.rows import Row, Tuned, Winner, is_for_host
from warmup.core.text import counted
from warmup.core.trial import LiveSearch, without
from warmup.keys.question import Linear, Question, RegionQuestion
from warmup.keys.registry import covers, kind_of, linears_of, nearest_row, neighbours_of
from warmup.table.schema import OnMiss, Uncovered

# `Disagreements`: what inductor does otherwise than a table says, each reported once.

_FUSION_WORDS: Final = {True: "fused", False: "not fused"}
_FUSION_ADVICE: Final = "build again, so that the row is measured in this model"
_GRAPHS_ADVICE: Final = "build a table with --launch cudagraph"
_SET_BY_CALLER: Final = "remove the setting while the table is installed"


@dataclass
class Disagreements:
    """Reports an option, or the fusion of a key, the first time that it differs from the table.

    ``fusions`` are the keys for which inductor fused another way than their rows say. With
    ``settles`` they are kept and not reported: whoever compiles chooses other winners for them.
    """

    emitter: Emitter
    settles: bool = False
    fusions: dict[str, None] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_fusion(self, key: str, *, expected: bool, found: bool) -> None:
        """Keep *key* where inductor fused another way than expected, and warn of it."""
        if expected == found:
            return
        with self._lock:
            self.fusions[key] = None
        if self.settles:
            return
        row_says, done = _FUSION_WORDS[expected], _FUSION_WORDS[found]
        self._contradict(
            *(f"fusion of {key}", row_says, done),
            f"{key}: the row was measured {row_says}, and here inductor compiled the GEMM "
            f"{done}: another kernel runs than was measured; {_FUSION_ADVICE}",
        )

    def note_option(self, option: str, expected: str, found: str, advice: str = "") -> None:
        """Warn that inductor's *option* is *found*, where the table was built with *expected*."""
        self._contradict(
            *(option, expected, found),
            f"inductor option {option} is {found} here, the table was built with {expected}: "
            f"inductor may not ask for its rows or not use them; {advice or _SET_BY_CALLER}",
        )

    def note_graphs(self, rows: int) -> None:
        """Warn that CUDA graphs are recorded, for which other winners than those of *rows* win."""
        if not rows:
            return
        self._contradict(
            *("launch", "one by one", "CUDA graphs"),
            f"inductor records CUDA graphs here, and {counted(rows, 'row')} of the table "
            f"{'has' if rows == 1 else 'have'} the winner that the host launches fastest, which "
            f"another candidate beats on the device; {_GRAPHS_ADVICE}",
        )

    def note_overruling(self, option: str, wanted: str, found: str) -> None:
        """Emit that the caller's value *found* of *option* was replaced by the table's."""
        if self._is_first_report(option):
            self.emitter.emit(EventName.OVERRULED, option=option, table=wanted, found=found)

    def _contradict(self, option: str, expected: str, found: str, message: str) -> None:
        if self._is_first_report(option):
            self.emitter.emit(EventName.CONTRADICTED, option=option, expected=expected, found=found)
            warn(ContradictionWarning(message))

    def _is_first_report(self, option: str) -> bool:
        """Return whether *option* was never reported before, and note that it is now."""
        with self._lock:
            is_first = option not in self._reported
            self._reported.add(option)
        return is_first


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
    """Measures candidates when ``on_miss`` is ``tune``; `warmup.tuning.tuner.Tuner` does."""

    def measure(self, question: Question) -> Tuned | None:
        """Return the row for a GEMM selection; None when no candidate could be measured."""

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Tuned | None:
        """Time *calls* in this process and return the row; None when none could be measured."""

    def measure_search(self, key: str, search: LiveSearch) -> Tuned | None:
        """Time the calls of *search*, and those that it adds; None as above."""

    def try_search(self, key: str, search: LiveSearch) -> Winner | None:
        """Time *search* and return its winner, which makes no row; None as above."""

    def measure_region(self, question: RegionQuestion) -> Tuned | None:
        """Return the row for *question*; None when it is measured later, or could not be."""

    def close(self) -> None:
        """End the processes that were started to measure; closing twice is fine."""


def _never(_key: str) -> bool:
    return False


@dataclass
class Lookup:
    """The rows of one table, with a policy for misses and for uncovered measurements.

    With a hard mismatch in ``mismatches`` every lookup is a miss for that reason. Each problem that
    ``tuner`` measures is passed to ``on_tuned`` and is answered from then on. A key for which
    ``retunes`` is true is a miss although it has a row, until it is measured again.

    A row that is not trusted is a miss, and is measured again without its winner. The keys in
    ``excused`` are not measured, and their misses are reported without an error. ``searches`` are
    those of the table's policy.

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
    retunes: Callable[[str], bool] = _never
    excused: Collection[str] = ()
    searches: frozenset[str] = frozenset()
    settles: bool = False
    _tuned_rows: dict[str, Row] = field(default_factory=dict)
    _nearest_rows: dict[str, tuple[str | None, tuple[str, ...]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _disagreements: Disagreements = field(init=False)

    def __post_init__(self) -> None:
        self._disagreements = Disagreements(self.emitter, settles=self.settles)

    @property
    def differing(self) -> Collection[str]:
        """The keys for which inductor fused another way than their rows say."""
        return self._disagreements.fusions

    @property
    def tunes(self) -> bool:
        return self.on_miss is OnMiss.TUNE

    def neighbours(self, key: str) -> tuple[Winner, ...]:
        with self._lock:
            return neighbours_of(key, {**self.rows, **self._tuned_rows})

    def find(self, key: str) -> Winner | MissReason:
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

    def hit(self, key: str, winner: Winner) -> None:
        self.emitter.emit(EventName.HIT, kind=kind_of(key).name, key=key, winner=str(winner))

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        nearest, differs = self._nearest(key, reason)
        self.emitter.emit(
            EventName.MISSED,
            kind=kind_of(key).name,
            key=key,
            reason=reason.value,
            nearest=nearest,
            differs=list(differs),
            choice=None if self.on_miss is OnMiss.STRICT else fallback,
        )
        is_excused = key in self.excused or (self.settles and reason is MissReason.INTERNAL)
        if self.on_miss is OnMiss.STRICT and not is_excused:
            raise MissError(key, reason.value, nearest, differs)

    def needs_freezing(self, linears: Iterable[Linear]) -> None:
        """Report a miss for each of *linears* whose frozen form has a row that would be served.

        Raises:
            MissError: misses are refused.
        """
        for linear in linears:
            if (key := self._frozen.get(linear)) is not None:
                self.miss(key, self._rejection() or MissReason.NEEDS_FREEZING, "aten")

    @cached_property
    def _frozen(self) -> dict[Linear, str]:
        """The rows for frozen weights, without those that are not trusted."""
        trusted = (key for key, row in self.rows.items() if row.untrusted is None)
        return {linear: key for key in trusted for linear in linears_of(key)}

    def measure(self, question: Question) -> Winner | None:
        assert self.tuner is not None
        key = question.problem.key
        if key in self.excused:
            return None
        if question.region is not None:
            with self._lock:
                rows = {**self.rows, **self._tuned_rows}
            known = {
                key: row.winner
                for key, row in rows.items()
                if self._is_current(key) and row.untrusted is None
            }
            question = replace(question, known=known)
        return self._tuned(self.tuner.measure(question.without(self._banned(key))))

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        assert self.tuner is not None
        if key in self.excused:
            return None
        banned = self._banned(key)
        if banned != library:
            calls = {winner: call for winner, call in calls.items() if winner != banned}
        return self._tuned(self.tuner.measure_calls(key, library, calls))

    def measure_search(self, key: str, search: LiveSearch) -> Winner | None:
        assert self.tuner is not None
        if key in self.excused:
            return None
        return self._tuned(self.tuner.measure_search(key, without(search, self._banned(key))))

    def try_search(self, key: str, search: LiveSearch) -> Winner | None:
        assert self.tuner is not None
        return self.tuner.try_search(key, search)

    def measure_region(self, question: RegionQuestion) -> Winner | None:
        assert self.tuner is not None
        if question.key in self.excused:
            return None
        return self._tuned(self.tuner.measure_region(question.without(self._banned(question.key))))

    def _banned(self, key: str) -> Winner | None:
        """Return the winner of a row that is not trusted, None without such a row."""
        row = self.rows.get(key)
        return None if row is None or row.untrusted is None else row.winner

    def _tuned(self, result: Tuned | None) -> Winner | None:
        """Keep the row of a measured problem, report it, and return its winner."""
        if result is None:
            return None
        with self._lock:
            self._tuned_rows[result.key] = result.row
        winner = str(result.row.winner)
        kind = kind_of(result.key).name
        self.emitter.emit(EventName.TUNED, kind=kind, key=result.key, winner=winner)
        if self.on_tuned is not None:
            self.on_tuned(result)
        return result.row.winner

    def scheduled(self, key: str, *, fused: bool, found: bool) -> None:
        self._disagreements.note_fusion(key, expected=fused, found=found)

    def close(self) -> None:
        """Close the tuner, if there is one."""
        if self.tuner is not None:
            self.tuner.close()

    def uncovered(self, site: str) -> None:
        if self.tunes and covers(site):
            return  # this measurement is the tuner's, and `TUNED` reports it
        refused = self.on_uncovered is Uncovered.FORBID
        self.emitter.emit(EventName.UNCOVERED, site=site, refused=refused, choice=None)
        if refused:
            raise UncoveredError(site)

    def uncompiled(self, frame: str, reason: str) -> None:
        self.emitter.emit(EventName.UNCOMPILED, frame=frame, reason=reason)

    def weight_changed(self, weight: str, changed: int, frame: str) -> None:
        refused = self.on_miss is OnMiss.STRICT
        self.emitter.emit(
            EventName.CHANGED, weight=weight, changed=changed, frame=frame, refused=refused
        )
        if refused:
            raise WeightChangedError(weight, changed, frame)

    def measures(self, site: str, choice: str) -> bool:
        if self.on_uncovered is not Uncovered.LIBRARY:
            return True  # `uncovered` reports or refuses the measurement
        self.emitter.emit(EventName.UNCOVERED, site=site, refused=False, choice=choice)
        return False

    def cached(self, decisions: int, misses: int) -> None:
        self.emitter.emit(EventName.CACHED, decisions=decisions, misses=misses)
        if misses and self.on_miss is OnMiss.STRICT:
            decided = f"{counted(misses, 'decision')} of a graph that came from inductor's cache"
            raise MissError(decided, MissReason.CACHED_MISS.value)

    @property
    def refuses_foreign(self) -> bool:
        return self.on_miss is OnMiss.STRICT or self.on_uncovered is Uncovered.FORBID

    def foreign(self, compiled_under: str | None, installed: str) -> None:
        under = None if compiled_under is None else shown_tag(compiled_under)
        here = shown_tag(installed)
        refused = self.refuses_foreign
        self.emitter.emit(EventName.FOREIGN, compiled_under=under, installed=here, refused=refused)
        if refused:
            raise ForeignGraphError(under, here)

    def contradicted(self, option: str, expected: str, found: str, advice: str = "") -> None:
        self._disagreements.note_option(option, expected, found, advice)

    def recorded(self) -> None:
        of_host = sum(is_for_host(row.evidence) for row in self.rows.values())
        self._disagreements.note_graphs(of_host)

    def overruled(self, option: str, wanted: str, found: str) -> None:
        self._disagreements.note_overruling(option, wanted, found)

    def _is_current(self, key: str) -> bool:
        """Whether the row of *key* need not be measured again."""
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
    """Return why *key* has no row: it is no key, or its range or its sizes were not built."""
    kind = kind_of(key)
    try:
        parts = kind.ingredients(key)
    except ProblemError:
        return MissReason.NOT_DESCRIBED
    is_dynamic = any(".." in parts.get(name, "") for name in kind.ranges)
    return MissReason.DYNAMIC_DIM if is_dynamic else MissReason.NOT_IN_TABLE
