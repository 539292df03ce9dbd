"""`Answers` and its questions: how inductor's hooks ask the rest of warmup for a winner.

A question is a decision with its candidates, described without naming torch. `Answers` is the
Protocol that the hooks call; `warmup.table.lookup` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from warmup.core.errors import MissReason
from warmup.core.events import HookEvent
from warmup.core.rows import Search, SearchCounts, Winner
from warmup.core.trial import Candidate, LiveSearch, Operands, Region, TensorSpec, ViewSpec
from warmup.keys.gemm import GemmProblem
from warmup.keys.kind import Problem


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """Functions that measure a question in this process.

    ``make_sets`` takes a seed and the largest number of operand sets and returns them;
    ``make_call`` returns the call of a candidate on these sets.
    """

    make_sets: Callable[[int, int], Operands]
    make_call: Callable[[Candidate, Operands], Callable[[int], object]]


@dataclass(frozen=True, slots=True)
class GemmQuestion:
    """A GEMM selection to be measured; `warmup.core.trial.Trial` explains the common fields.

    ``live`` measures in this process; it is None when a child process measures. ``uncompiled``
    holds the candidates that did not compile, with the reason. ``region`` is the GEMM with the
    operators that may be fused into it, None without any. ``known`` holds winners of other keys.
    When a size of the key is a range, ``size`` is the value that is measured for the first such
    size, and ``smaller_sizes`` are the smaller values at which winners can be compared. ``vary``
    makes algorithms of a library like those that were timed, the fastest first; None without any.
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
    vary: Callable[[Sequence[Winner]], tuple[Candidate, ...]] | None = None
    makes_row: ClassVar[bool] = True

    def offers(self, winner: Winner) -> bool:
        return any(one.winner == winner.choice for one in self.candidates)

    def without(self, banned: Winner) -> GemmQuestion:
        """Return this question without the candidate *banned*, which is not the library's."""
        kept = tuple(one for one in self.candidates if one.winner != banned.choice)
        return replace(self, candidates=kept)


@dataclass(frozen=True, slots=True)
class CallsQuestion:
    """Calls of candidates, to be timed in this process; ``library`` is one of them.

    Without calls ``times_us`` has the times that the kernel's own tuner took, its median first, of
    which the least wins; infinite where a candidate failed.
    """

    problem: Problem
    library: Winner
    calls: Mapping[Winner, Callable[[int], object]]
    times_us: Mapping[Winner, tuple[float, ...]] = field(default_factory=dict)
    makes_row: ClassVar[bool] = True

    def offers(self, winner: Winner) -> bool:
        return winner in self.calls or winner in self.times_us

    def without(self, banned: Winner) -> CallsQuestion:
        calls = {winner: call for winner, call in self.calls.items() if winner != banned}
        times_us = {winner: times for winner, times in self.times_us.items() if winner != banned}
        return replace(self, calls=calls, times_us=times_us)


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """A search, whose candidates are timed in this process while further ones are made.

    Without ``makes_row`` the winner is wanted and no row: a kernel that differs from that of the
    problem in its name alone is then not timed again when it is searched later.
    """

    problem: Problem
    search: LiveSearch
    makes_row: bool = True

    @property
    def library(self) -> Winner:
        return self.search.listed[0]

    def offers(self, winner: Winner) -> bool:
        """Return whether *winner* is listed: the hooks can make no kernel of another config."""
        return winner in self.search.listed

    def without(self, banned: Winner) -> SearchQuestion:
        return replace(self, search=self.search.without(banned)) if self.makes_row else self


@dataclass(frozen=True, slots=True)
class RegionQuestion:
    """A decision about the kernels of a region, to be measured by compiling each of its variants.

    ``variants`` are the winners to choose among, that of default mode first, then its opposite;
    others are like the first. ``region`` is the operator in question with what is computed around
    it, which is what runs; None where plain values cannot describe it, for ``reason``. A compiled
    region may ask inductor's question by any of ``keys_in_region``. ``calls`` are inductor's own
    calls of the variants, for a GEMM that may be padded: the library's GEMM with separate pad
    kernels. They may be made only until the question is answered; a reduction that may be split has
    none. ``least`` are calls that take no longer than a variant in any region: of a padded GEMM the
    product on padded operands. Where no variant can win, the answer comes at once. Else the
    question is measured after the compile is over, when the model is compiled again: the answer is
    None until then.
    """

    problem: Problem
    variants: tuple[Winner, ...]
    region: Region | None
    keys_in_region: frozenset[str] = frozenset()
    reason: str = ""
    calls: Mapping[Winner, Callable[[int], object]] = field(default_factory=dict)
    least: Mapping[Winner, Callable[[int], object]] = field(default_factory=dict)
    makes_row: ClassVar[bool] = True

    @property
    def library(self) -> Winner:
        return self.variants[0]

    @property
    def key(self) -> str:
        return self.problem.key

    def offers(self, winner: Winner) -> bool:
        return winner in self.variants

    def without(self, banned: Winner) -> RegionQuestion:
        variants = tuple(winner for winner in self.variants if winner != banned)
        calls = {winner: call for winner, call in self.calls.items() if winner != banned}
        return replace(self, variants=variants, calls=calls, least={})


Question = GemmQuestion | CallsQuestion | SearchQuestion | RegionQuestion


@dataclass(frozen=True, slots=True)
class SmallerSize:
    """A smaller size in the range of a question's key, and the question at that size.

    ``question_for`` returns the question for some of the winners. It leaves out candidates for
    which inductor would generate another kernel at that size. It may be called only until the
    original question is answered.
    """

    size: int
    question_for: Callable[[Sequence[Winner]], GemmQuestion]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What hooks do while they are attached.

    ``measures``: a problem without a row is measured, not missed; without ``times_kernels`` those
    of generated kernels (launch, reduction) are missed all the same. ``search`` is how far the
    search for GEMM candidates goes beyond inductor's list, and ``neighbours`` returns the winners
    of similar GEMM problems, nearest first; with `Search.IMPORTED` they are the configs to measure,
    of a template its tuning kwargs alone.

    ``searched`` are the kinds of which every decision has a row; of others without a row nothing is
    decided. A launch config that inductor lists alone is a decision then. Reductions are
    persistent, looped or split by inductor's rule without their kind, and grouped products the
    library's. ``kinds`` are those that have rows.

    ``fixes_rows``: a row is computed alike beside any number of rows. A kernel that reduces has one
    config, no sum is split over the threads of a CPU, and what is fused into a template reads its
    output rounded.
    ``refuses_foreign``: graphs compiled under another table, or under none, must not be loaded.
    ``takes_library``: a selection that no row kind covers is not measured, its library's choice is
    compiled.
    """

    measures: bool = False
    times_kernels: bool = True
    search: Search = Search.DEFAULT
    neighbours: Callable[[Problem], Sequence[Winner]] = lambda _problem: ()
    searched: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    fixes_rows: bool = False
    refuses_foreign: bool = False
    takes_library: bool = True


class Answers(Protocol):
    """Answers the questions of inductor's hooks while they are attached, from any thread."""

    @property
    def settings(self) -> Settings:
        """What the hooks do; read once, when they are attached."""

    def find(self, problem: Problem) -> Winner | MissReason:
        """Return the row's winner for *problem*, or the reason for the miss. Emits no event."""

    def measure(self, question: Question) -> Winner | None:
        """Measure the candidates of *question* and return the winner; only if hooks measure.

        None when no candidate could be measured, or later; the library's is compiled then.
        """

    def emit(self, event: HookEvent) -> None:
        """Report *event*; strict and forbid refuse it with an error where its docstring says so."""
