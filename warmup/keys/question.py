"""What inductor asks of the rest of warmup, in warmup's words. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from warmup.core.method import Search
from warmup.core.rows import MissReason, Winner
from warmup.core.search import SearchCounts
from warmup.core.trial import Candidate, Operands, Region, TensorSpec, ViewSpec
from warmup.keys.gemm import GemmProblem


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """How to measure in this process: operand sets by seed, and calls of candidates on them."""

    make_sets: Callable[[int, int], Operands]
    make_call: Callable[[Candidate, Operands], Callable[[int], object]]


@dataclass(frozen=True, slots=True)
class Question:
    """One GEMM selection to be measured; see `warmup.core.trial.Trial` for its parts.

    ``live`` is how to measure in this process, None when another one does. ``uncompiled`` are
    candidates that did not compile, and why. ``region`` is what may be fused into it, None where
    nothing is, ``searched`` how the candidates were found, and ``known`` are winners of other keys.
    Where a size of the key is a range, ``size`` is the first such size, as it is measured, and
    ``elsewhere`` are smaller ones of the range.
    """

    problem: GemmProblem
    device: str
    candidates: tuple[Candidate, ...]
    operands: tuple[TensorSpec, ...] = ()
    views: tuple[ViewSpec, ...] = ()
    out: TensorSpec | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    live: LiveTrial | None = None
    uncompiled: Mapping[Winner, str] = field(default_factory=dict)
    library: Winner | None = None
    region: Region | None = None
    searched: SearchCounts | None = None
    known: Mapping[str, Winner] = field(default_factory=dict)
    size: int | None = None
    elsewhere: tuple[Elsewhere, ...] = ()

    @property
    def key(self) -> str:
        """The key of the problem, as tables and people read it."""
        return self.problem.key


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another size of a question's range, and how to ask there about some of its candidates.

    What is asked lacks those that inductor would make another kernel of there. It can be asked
    until the question is answered.
    """

    size: int
    ask: Callable[[Sequence[Winner]], Question]


class Answers(Protocol):
    """Who answers inductor's questions while attached. Called from any thread."""

    @property
    def tunes(self) -> bool:
        """True when a question without a row is to be measured by `measure` or `contest`."""

    @property
    def search(self) -> Search:
        """Which candidates a GEMM selection has beyond inductor's own (only when `tunes`)."""

    def neighbours(self, key: str) -> Sequence[Winner]:
        """Return winners of GEMM problems near *key*, nearest first (only when `tunes`)."""

    def find(self, key: str) -> Winner | MissReason:
        """Return the winner for *key*, or why there is none. Emits nothing."""

    def hit(self, key: str, winner: Winner) -> None:
        """A row's choice survived into the compiled code."""

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        """No row answered and *fallback* is compiled instead.

        Raises:
            MissError: serving is strict.
        """

    def measure(self, question: Question) -> Winner | None:
        """Measure the candidates of a GEMM selection and return the winner (only when `tunes`).

        None when none of them could be measured; the library's kernel is compiled then.
        """

    def contest(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        """Time *calls* in this process and return the winner for *key* (only when `tunes`).

        Each call is given its number, from 0 on. *library* wins near ties. None when no call ran.
        """

    def uncovered(self, site: str) -> None:
        """Something that no row covers is about to be measured on the device.

        Raises:
            UncoveredError: no such measurement may run.
        """

    def cached(self, decisions: int, misses: int) -> None:
        """A graph came whole from inductor's cache, compiled with *decisions*, *misses* of them.

        Raises:
            MissError: there were misses and serving is strict.
        """

    def contradicted(self, option: str, expected: str, found: str) -> None:
        """An inductor option of the caller's stands, and is not what the table's policy says."""

    def overruled(self, option: str, wanted: str, found: str) -> None:
        """An inductor option of the caller's that measures was replaced by the table's."""
