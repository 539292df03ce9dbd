"""Answering inductor from a table: one lookup, one event."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from warmup.core.errors import ContradictionWarning, MissError, ProblemError, UncoveredError
from warmup.core.events import Emitter, EventName
from warmup.core.method import Search
from warmup.core.rows import MissReason, Row, Tuned, Winner
from warmup.core.runtime import Mismatch
from warmup.keys.gemm import COVERED
from warmup.keys.nearest import nearest, neighbours_of
from warmup.keys.question import Question
from warmup.keys.registry import ingredients_of, kind_of


class OnMiss(StrEnum):
    """What happens when no row answers."""

    FALLBACK = "fallback"
    STRICT = "strict"
    TUNE = "tune"


class Uncovered(StrEnum):
    """What happens when something is about to be measured that no row covers."""

    COUNT = "count"
    FORBID = "forbid"


class QuestionMeasurer(Protocol):
    """Who measures when `on_miss` is ``tune``; `warmup.tuning.tuner.Tuner` does."""

    def measure(self, question: Question) -> Tuned | None:
        """Return the row for a GEMM selection; None when no candidate could be measured."""

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Tuned | None:
        """Return the row for calls that are timed in this process; None as above."""

    def close(self) -> None:
        """End what was started to measure; closing twice is fine."""


_TUNED_SITES: Final = frozenset({"launch", "pad"})


def _never(_key: str) -> bool:
    return False


@dataclass
class Lookup:
    """The rows of one table with a policy for misses. Implements `warmup.keys.question.Answers`.

    When *mismatches* holds a hard one every lookup is a miss with that reason. Each problem that
    *tuner* finishes is handed to *on_tuned* and answered from then on. A key that *asks_again* says
    true of is a miss although it has a row.
    """

    rows: Mapping[str, Row]
    on_miss: OnMiss
    emitter: Emitter
    mismatches: tuple[Mismatch, ...] = ()
    on_uncovered: Uncovered = Uncovered.COUNT
    tuner: QuestionMeasurer | None = None
    on_tuned: Callable[[Tuned], None] | None = None
    search: Search = Search.DEFAULT
    asks_again: Callable[[str], bool] = _never
    _fresh: dict[str, Row] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _closest: dict[str, tuple[str | None, tuple[str, ...]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def tunes(self) -> bool:
        return self.on_miss is OnMiss.TUNE

    def neighbours(self, key: str) -> tuple[Winner, ...]:
        with self._lock:
            return neighbours_of(key, {**self.rows, **self._fresh})

    def find(self, key: str) -> Winner | MissReason:
        fresh = self._fresh.get(key)
        if fresh is not None:
            return fresh.winner
        rejection = self._rejection()
        if rejection is not None:
            return rejection
        row = self.rows.get(key)
        return row.winner if row is not None and self._stands(key) else _absence(key)

    def hit(self, key: str, winner: Winner) -> None:
        self.emitter.emit(EventName.HIT, kind=kind_of(key).name, key=key, winner=str(winner))

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        closest, differs = self._nearest(key, reason)
        self.emitter.emit(
            EventName.MISSED,
            kind=kind_of(key).name,
            key=key,
            reason=reason.value,
            nearest=closest,
            differs=list(differs),
            choice=None if self.on_miss is OnMiss.STRICT else fallback,
        )
        if self.on_miss is OnMiss.STRICT:
            raise MissError(key, reason.value, closest, differs)

    def measure(self, question: Question) -> Winner | None:
        assert self.tuner is not None
        if question.region is not None:
            with self._lock:
                rows = {**self.rows, **self._fresh}
            known = {key: row.winner for key, row in rows.items() if self._stands(key)}
            question = replace(question, known=known)
        return self._tuned(self.tuner.measure(question))

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        assert self.tuner is not None
        return self._tuned(self.tuner.measure_calls(key, library, calls))

    def _tuned(self, result: Tuned | None) -> Winner | None:
        """Answer the finished problem from now on, and hand it on."""
        if result is None:
            return None
        with self._lock:
            self._fresh[result.key] = result.row
        winner = str(result.row.winner)
        kind = kind_of(result.key).name
        self.emitter.emit(EventName.TUNED, kind=kind, key=result.key, winner=winner)
        if self.on_tuned is not None:
            self.on_tuned(result)
        return result.row.winner

    def close(self) -> None:
        """End what the tuner started, if there is one."""
        if self.tuner is not None:
            self.tuner.close()

    def uncovered(self, site: str) -> None:
        if self.tunes and (site in _TUNED_SITES or site.removeprefix("select:") in COVERED):
            return  # asked for, and reported as tuned
        refused = self.on_uncovered is Uncovered.FORBID
        self.emitter.emit(EventName.UNCOVERED, site=site, refused=refused)
        if refused:
            raise UncoveredError(site)

    def cached(self, decisions: int, misses: int) -> None:
        self.emitter.emit(EventName.CACHED, decisions=decisions, misses=misses)
        if misses and self.on_miss is OnMiss.STRICT:
            said = f"{misses} decisions of a graph that came from inductor's cache"
            raise MissError(said, MissReason.CACHED_MISS.value)

    def contradicted(self, option: str, expected: str, found: str) -> None:
        with self._lock:
            if option in self._told:
                return
            self._told.add(option)
        self.emitter.emit(EventName.CONTRADICTED, option=option, expected=expected, found=found)
        warnings.warn(
            f"inductor option {option} is {found} here, the table was built with {expected}: "
            "rows may not be asked for or not survive; drop it while a table is installed",
            ContradictionWarning,
            stacklevel=2,
        )

    def overruled(self, option: str, wanted: str, found: str) -> None:
        with self._lock:
            if option in self._told:
                return
            self._told.add(option)
        self.emitter.emit(EventName.OVERRULED, option=option, table=wanted, found=found)

    def _stands(self, key: str) -> bool:
        """Whether the row of *key* is not to be replaced."""
        return key in self._fresh or not self.asks_again(key)

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
        if reason is MissReason.NOT_DESCRIBED:
            return None, ()
        if key in self.rows:
            return key, (f"choice: row {self.rows[key].winner}, not built by this torch here",)
        if key not in self._closest:  # equal layers miss the same key; looking reads every row
            self._closest[key] = nearest(key, self.rows)
        return self._closest[key]


def _absence(key: str) -> MissReason:
    """Tell a dynamic dim whose range was not built from a static problem that was not."""
    try:
        asked = ingredients_of(key)
    except ProblemError:
        return MissReason.NOT_DESCRIBED
    dynamic = any(".." in asked.get(name, "") for name in ("m", "n", "k"))
    return MissReason.DYNAMIC_DIM if dynamic else MissReason.NOT_IN_TABLE
