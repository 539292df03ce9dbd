"""`Tuner`: measures inductor's questions while a table is built, and chooses the winners.

GEMM selections on a GPU are measured in a child process: first each candidate bare, then the best
of them fused, with the region that inductor compiles with the GEMM. Questions whose operands exist
in this process only (launch configs, padding, packed CPU weights) are measured here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

import torch

from warmup.core.call_cost import CallCost
from warmup.core.events import logger
from warmup.core.live_search import LiveSearch
from warmup.core.method import Method, OptionValue, Search
from warmup.core.phases import BuildClock, BuildStage
from warmup.core.rows import Rejection, Tuned, Winner
from warmup.core.trial import Outcome, Region
from warmup.keys.question import Question, RegionQuestion
from warmup.keys.registry import kind_of, operations_of
from warmup.keys.registry import work_of as work_of_key
from warmup.measuring.enqueue import cost_of
from warmup.measuring.live_search import time_search, with_narrow_band
from warmup.measuring.machine_watch import MachineWatch
from warmup.measuring.measured_rows import make_fused_row
from warmup.measuring.range_regret import (
    is_within_bound,
    with_bare_range_regret,
    with_range_regret,
)
from warmup.measuring.screening import time_calls
from warmup.measuring.selection import select_winner
from warmup.measuring.trial_process import TrialNotRunError, TrialProcess, own_command
from warmup.table import Policy
from warmup.tuning.bare_trials import BareTrials
from warmup.tuning.region_questions import RegionQuestions, WaitingQuestion
from warmup.tuning.row_maker import PeakBounds, RowMaker
from warmup.tuning.search_results import FoundConfigs, SearchResults
from warmup.tuning.size_range import choose_for_range
from warmup.tuning.trials import challengers, faster_alone, region_trial, work_of
from warmup.tuning.ways import run_ways


@dataclass
class Tuner:
    """Measures questions on *device* by *method*. As a context manager it ends its child process.

    ``tolerance`` is the largest relative L2 error against the reference, by dtype of the output.
    ``options`` are the inductor options that serving shares. ``rows`` makes the rows, and keeps why
    a key has none. ``watch`` waits for a quiet machine, and says which measurements other processes
    disturbed: those rows have the library default. Questions that only a compiled region can answer
    are kept in ``region_questions`` for a caller that compiles regions, if there is one. For the
    keys in ``apart`` nothing is fused into a template: in the model inductor does not fuse what it
    fuses in the region alone. ``searches`` keeps what came of launch searches, by kernel,
    and ``clock`` has the seconds of the build.
    """

    device: torch.device
    method: Method
    tolerance: Mapping[str, float]
    seed: int = 0
    process: TrialProcess = field(default_factory=lambda: TrialProcess(own_command()))
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    region_questions: RegionQuestions = field(default_factory=RegionQuestions)
    apart: set[str] = field(default_factory=set)
    searches: SearchResults = field(default_factory=SearchResults)
    clock: BuildClock = field(default_factory=BuildClock)
    bounds: PeakBounds = field(init=False)
    rows: RowMaker = field(init=False)
    watch: MachineWatch = field(init=False)
    bare: BareTrials = field(init=False)

    def __post_init__(self) -> None:
        self.bounds = PeakBounds(self.device, self.method.l2, turn=self._turn)
        self.rows = RowMaker(self.method, self.bounds)
        self.watch = MachineWatch(
            self.device, own=lambda: frozenset({os.getpid(), *filter(None, [self.process.pid])})
        )
        measured = self.process, self.method, self.tolerance, self.seed
        self.bare = BareTrials(*measured, self.bounds, self.watch)

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            self.process.start()  # it imports torch while this process loads the model
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process, if it runs; closing twice is fine."""
        self.process.close()

    def measure(self, question: Question) -> Tuned | None:
        """Return the row for a GEMM selection; None when no candidate could be measured.

        The best candidates are measured again fused, where inductor may fuse operations into the
        GEMM, and at smaller sizes, where a size of the problem is a range.
        """
        if question.searched is not None:
            logger.debug("searched %s: %s", question.searched, question.problem.key)
        with self.clock.phase(BuildStage.BARE_TRIALS):
            tuned, region = self._measure_bare(question), question.region
        if tuned is None:
            return None
        if region is not None and self.method.fused_top_k:
            with self.clock.phase(BuildStage.FUSED_TRIALS):
                tuned = self._measure_fused(question, tuned, region)
        return replace(tuned, searched=question.searched)

    def _measure_bare(self, question: Question) -> Tuned | None:
        library = question.library
        assert library is not None
        if not self.rows.is_wanted(question.problem.key, library):
            return None
        try:
            with self.bare.measuring() as is_disturbed:
                result = self.bare.run(question)
        except TrialNotRunError as error:
            self.rows.give_up(question.problem.key, library, str(error))
            return None
        if result.clock_mhz is not None:
            self.watch.clocks.append(result.clock_mhz)
        uncompiled = (
            Outcome(winner=winner, rejection=Rejection.COMPILE, said=reason)
            for winner, reason in question.uncompiled.items()
        )
        row_for = partial(
            self.rows.row_for,
            question.problem.key,
            library=library,
            work=work_of(question),
            clock_mhz=result.clock_mhz,
            search=question.searched.search if question.searched else Search.DEFAULT,
        )
        outcomes = (*result.outcomes, *uncompiled)
        tuned = row_for(outcomes, is_disturbed=is_disturbed())
        if tuned is None or not question.smaller_sizes:
            return tuned
        with self.bare.measuring() as is_disturbed:
            winner, sizes = choose_for_range(
                question,
                outcomes,
                tuned.row.winner,
                self.method,
                lambda q: self.bare.run(q).outcomes,
            )
        if is_disturbed():
            tuned = row_for(outcomes, is_disturbed=True) or tuned
        elif winner != tuned.row.winner and not tuned.row.evidence.is_unstable:
            tuned = row_for(sizes[-1].outcomes, winner=winner) or tuned
        return with_range_regret(tuned, sizes, library, self.method)

    def _measure_fused(self, question: Question, bare: Tuned, region: Region) -> Tuned:
        """Return the row for candidates timed with *region*; *bare* when none could be timed."""
        library = question.library
        assert library is not None
        trial = region_trial(question, region, self.method, self.tolerance, self.seed)
        trial = replace(trial, options=self.options)
        started = time.monotonic()
        try:
            with self.watch.measuring() as is_disturbed:
                outcomes = self.process.run(trial).outcomes
                others = [
                    one
                    for one in challengers(bare, library, region, outcomes[0].time_us)
                    if is_within_bound(one, bare)
                ]
                if others:
                    alone, most = faster_alone(bare, library, self.method), self.method.fused_top_k
                    fuses = question.problem.key not in self.apart
                    outcomes = run_ways(self.process.run, trial, others, alone, most, fuses=fuses)
        except TrialNotRunError as error:
            self.rows.not_fused[question.problem.key] = str(error)
            return bare
        seconds = time.monotonic() - started
        logger.debug(
            "%d fused candidates in %.2f s: %s", len(outcomes), seconds, question.problem.key
        )
        work = work_of(question)
        fused = make_fused_row(
            *(bare, outcomes, library, self.method),
            work=work,
            peaks=self.bounds.bounding(work),
            is_disturbed=is_disturbed(),
        )
        if fused is None or outcomes[0].time_us is None:
            self.rows.not_fused[question.problem.key] = outcomes[0].said or "no candidate ran"
            return bare
        if not is_within_bound(fused.row.winner, bare):
            self.rows.not_fused[question.problem.key] = (
                f"{fused.row.winner} is too slow at a size of the range"
            )
            return bare
        return with_bare_range_regret(bare, fused)

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Tuned | None:
        """Return the row for *calls*, timed in this process; None when no call ran."""
        if not self.rows.is_wanted(key, library):
            return None
        with self.clock.phase(BuildStage.BARE_TRIALS), self.watch.measuring() as is_disturbed:
            outcomes = time_calls(calls, library, self.device, self.method)
        return self.rows.row_for(key, outcomes, library, is_disturbed=is_disturbed())

    def measure_search(self, key: str, search: LiveSearch) -> Tuned | None:
        """Return the row for a launch config, searched in this process; None when no config ran."""
        if not self.rows.is_wanted(key, search.listed[0]):
            return None
        found = self.searches.known(key, search) or self._search(key, search)
        self.searches.keep(key, search, found)
        tuned = self.rows.row_for(
            *(key, found.outcomes, found.library),
            is_disturbed=found.is_disturbed,
            work=work_of_key(key) if operations_of(key) else None,
            method=with_narrow_band(self.method),
        )
        return None if tuned is None else replace(tuned, searched=found.counts)

    def try_search(self, key: str, search: LiveSearch) -> Winner | None:
        """Return the winner of *search*, measured as by `measure_search`; there is no row."""
        found = self._search(key, search)
        self.searches.keep(key, search, found, has_row=False)
        selected = select_winner(
            *(found.outcomes, found.library, with_narrow_band(self.method)),
            is_disturbed=found.is_disturbed,
        )
        return None if selected is None else selected.outcome.winner

    def _search(self, key: str, search: LiveSearch) -> FoundConfigs:
        started, method = time.monotonic(), with_narrow_band(self.method)
        floor_us = self.bounds.floor_us(operations_of(key))
        stage = self.clock.phase(kind_of(key).stage)
        with stage, self.watch.measuring() as is_disturbed, torch.no_grad():
            outcomes, library = time_search(search, self.device, method, self.tolerance, floor_us)
        counts, seconds = search.counts(), time.monotonic() - started
        logger.debug("searched %s in %.2f s: %s", counts, seconds, key)
        return FoundConfigs(tuple(outcomes), library, counts, is_disturbed=is_disturbed())

    def _turn(self) -> AbstractContextManager[None]:
        return self.watch.turn()  # which whoever starts the watch sets

    def cost_of(self, call: Callable[[], object]) -> CallCost | None:
        """Return what *call*, which has run before, costs; None on a CPU."""
        if self.device.type == "cpu":
            return None
        with self.clock.phase(BuildStage.JUDGING):
            return cost_of(call, self.device)

    def measure_region(self, question: RegionQuestion) -> Tuned | None:
        """Keep *question* where its region can be measured later; else return its row.

        That row has the times of inductor's own calls, and ``rows.not_fused`` says why. Without
        such calls there is no row.
        """
        if not self.region_questions.is_open_to(question.key):
            return None
        if not self.rows.is_wanted(question.key, question.library):
            return None
        outcomes, was_disturbed = list[Outcome](), False
        if question.calls:
            with self.watch.measuring() as is_disturbed:
                outcomes = time_calls(question.calls, question.library, self.device, self.method)
            was_disturbed = is_disturbed()
        without_calls = replace(question, calls={})  # they hold memory
        waiting = WaitingQuestion(without_calls, outcomes, was_disturbed)
        if question.region is None or not self.region_questions.is_used:
            reason = question.reason or "it was asked while serving, which compiles a model once"
            return self.rows.bare_ways_row(waiting, reason)
        self.region_questions.keep(waiting)
        return None


def make_tuner(policy: Policy, device: torch.device, since: float | None = None) -> Tuner:
    """Return a tuner that measures on *device* as *policy* says.

    Its clock begins at *since*, by `time.monotonic`; without it, now.
    """
    timing = policy.timing
    process = TrialProcess(own_command(workers=timing.fused_top_k > 0))
    return Tuner(
        *(device, timing, policy.tolerance, policy.seed),
        process=process,
        options=policy.options,
        clock=BuildClock(since),
    )
