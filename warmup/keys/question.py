"""`Question` and `Answers`: how inductor's hooks ask the rest of warmup for a winner.

A `Question` describes one GEMM selection without naming torch. `Answers` is the Protocol that the
hooks call; `warmup.table.lookup` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from warmup.core.errors import MissReason
from warmup.core.method import Search, SearchCounts
from warmup.core.rows import Winner
from warmup.core.trial import Candidate, LiveSearch, Operands, Region, TensorSpec, ViewSpec
from warmup.keys.gemm import GemmProblem


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with a constant matrix: its rows m, None for a range, n and k."""

    m: int | None
    n: int
    k: int
    dtype: str
    has_bias: bool


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """Functions that measure a question in this process.

    ``make_sets`` takes a seed and the largest number of operand sets and returns them;
    ``make_call`` returns the call of a candidate on these sets.
    """

    make_sets: Callable[[int, int], Operands]
    make_call: Callable[[Candidate, Operands], Callable[[int], object]]


@dataclass(frozen=True, slots=True)
class Question:
    """One GEMM selection to be measured; `warmup.core.trial.Trial` explains the common fields.

    ``live`` measures in this process; it is None when a child process measures. ``uncompiled``
    holds the candidates that did not compile, with the reason. ``region`` is the GEMM with the
    operators that may be fused into it, None when there are none. ``searched`` says how the
    candidates were generated, and ``known`` holds winners of other keys.

    When a size of the key is a range, ``size`` is the value that is measured for the first such
    size, and ``smaller_sizes`` are the smaller values at which winners can be compared.
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
    smaller_sizes: tuple[SmallerSize, ...] = ()

    def without(self, banned: Winner | None) -> Question:
        """Return this question without the candidate *banned*, unless that is the library's."""
        if banned is None or banned == self.library:
            return self
        kept = tuple(one for one in self.candidates if one.winner != banned.choice)
        return replace(self, candidates=kept)


@dataclass(frozen=True, slots=True)
class RegionQuestion:
    """A decision about the kernels of a region, to be measured by compiling the region each way.

    ``ways`` are the winners to choose among, that of default mode first. ``region`` is the operator
    in question with what is computed around it, which is what runs; None where plain values cannot
    describe it, for ``reason``. A compiled region may ask inductor's question by any of
    ``keys_in_region``. ``calls`` are inductor's own calls of the ways, for a GEMM that may be
    padded: the library's GEMM with separate pad kernels. They may be made only until the question
    is answered; a reduction that may be split has none.
    """

    key: str
    ways: tuple[Winner, ...]
    region: Region | None
    keys_in_region: frozenset[str] = frozenset()
    reason: str = ""
    calls: Mapping[Winner, Callable[[int], object]] = field(default_factory=dict)

    @property
    def library(self) -> Winner:
        """The way of default mode."""
        return self.ways[0]

    def without(self, banned: Winner | None) -> RegionQuestion:
        """Return this question without the way *banned*, unless that is default mode's."""
        if banned is None or banned == self.library:
            return self
        ways = tuple(winner for winner in self.ways if winner != banned)
        calls = {winner: call for winner, call in self.calls.items() if winner != banned}
        return replace(self, ways=ways, calls=calls)


@dataclass(frozen=True, slots=True)
class SmallerSize:
    """A smaller size in the range of a question's key, and the question at that size.

    ``question_for`` returns the question for some of the winners. It leaves out candidates for
    which inductor would generate another kernel at that size. It may be called only until the
    original question is answered.
    """

    size: int
    question_for: Callable[[Sequence[Winner]], Question]


class Answers(Protocol):
    """Answers the questions of inductor's hooks while they are attached.

    Every method may be called from any thread.
    """

    @property
    def tunes(self) -> bool:
        """True when questions without a row are measured: in a build, or with ``on_miss=tune``."""

    @property
    def search(self) -> Search:
        """How far the search for GEMM candidates goes beyond inductor's list (only if `tunes`)."""

    @property
    def searches(self) -> frozenset[str]:
        """The kinds of which every decision has a row; of others without a row nothing is decided.

        A launch config that inductor lists alone is a decision then. Reductions are persistent,
        looped or split by inductor's rule without their kind, and grouped products the library's.
        """

    def neighbours(self, key: str) -> Sequence[Winner]:
        """Return winners of GEMM problems similar to *key*, nearest first (only if `tunes`).

        With `Search.IMPORTED` these are the configs to measure for *key*, of a template its tuning
        kwargs alone.
        """

    def find(self, key: str) -> Winner | MissReason:
        """Return the row's winner for *key*, or the reason for the miss. Emits no event."""

    def hit(self, key: str, winner: Winner) -> None:
        """Report that *winner* was compiled for *key*."""

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        """Report that *fallback* is compiled for *key* because no row applies.

        Raises:
            MissError: serving is strict.
        """

    def measure(self, question: Question) -> Winner | None:
        """Measure the candidates of *question* and return the winner (only if `tunes`).

        None when no candidate could be measured; the library's kernel is compiled then.
        """

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        """Time *calls* in this process and return the winner; None as for `measure`."""

    def scheduled(self, key: str, *, fused: bool, found: bool) -> None:
        """Report whether operations were fused into the template compiled for *key*.

        *fused* is what the row says, *found* what inductor did.
        """

    def measure_search(self, key: str, search: LiveSearch) -> Winner | None:
        """Time the candidates of *search* in this process and return the winner.

        None as for `measure`.
        """

    def try_search(self, key: str, search: LiveSearch) -> Winner | None:
        """Time the candidates of *search* as `measure_search` does, and make no row.

        Returns the winner; None when no candidate could be measured. A kernel that differs from
        that of *key* in its name alone is not timed again when it is searched later.
        """

    def measure_region(self, question: RegionQuestion) -> Winner | None:
        """Measure the ways of *question* and return the winner.

        None when none could be measured, and in a build, which measures when the compile is over
        and compiles again; the way of default mode is compiled then.
        """

    def uncovered(self, site: str) -> None:
        """Report that *site* of inductor is about to run a benchmark that no row kind covers.

        Raises:
            UncoveredError: benchmarks without a row are forbidden.
        """

    def uncompiled(self, frame: str, reason: str) -> None:
        """Report that torch.compile left *frame* uncompiled, for torch's *reason*."""

    def weight_changed(self, weight: str, changed: int, frame: str) -> None:
        """Report that *frame* is compiled again, since it froze *weight*, which was changed.

        *changed* counts the changed weights, *weight* among them.

        Raises:
            WeightChangedError: serving is strict.
        """

    def measures(self, site: str, choice: str) -> bool:
        """Return whether to measure a selection at *site*, which no row kind covers.

        Otherwise it is reported as uncovered, and *choice* is compiled.
        """

    def cached(self, decisions: int, misses: int) -> None:
        """Report a graph loaded from inductor's cache, with the counts of its compile.

        *decisions* selections were made when the graph was compiled; *misses* of them had no row.

        Raises:
            MissError: there were misses and serving is strict.
        """

    @property
    def refuses_foreign(self) -> bool:
        """True when graphs compiled under another table, or under none, must not be loaded."""

    def foreign(self, compiled_under: str | None, installed: str) -> None:
        """Report a loaded graph that was compiled under another cache tag, None for no tag.

        *installed* is the cache tag of the table that is attached.

        Raises:
            ForeignGraphError: such graphs are refused.
        """

    def contradicted(self, option: str, expected: str, found: str, advice: str = "") -> None:
        """Report that the value *found* of *option* is used instead of the table's.

        *advice* is what the caller can do; empty where removing the caller's setting is enough.
        """

    def recorded(self) -> None:
        """Report that inductor records CUDA graphs of what is compiled now."""

    def overruled(self, option: str, wanted: str, found: str) -> None:
        """Report that the caller's value *found* of *option* was replaced by the table's."""
