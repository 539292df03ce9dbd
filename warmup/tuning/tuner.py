"""Measuring what inductor asks while a table is built, and choosing.

GEMM selections on a GPU are measured in a child process, first each candidate alone, then the best
of them with what is compiled with it; what has live operands only (launch configs, padding, packed
CPU weights) is measured here.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

import torch

from warmup.core.events import logger
from warmup.core.method import L2, Method, OptionValue, Search
from warmup.core.roofline import Peaks, share_of_peak
from warmup.core.rows import Evidence, Rejection, Row, Tuned, Winner
from warmup.core.trial import Candidate, Outcome, Region, Trial
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import LiveTrial, Question
from warmup.measuring.device_peaks import measured_peaks
from warmup.measuring.gpu_state import clock_dropped, read_condition
from warmup.measuring.range_regret import (
    is_within_bound,
    with_bare_range_regret,
    with_range_regret,
    worst_regret_over_bound,
)
from warmup.measuring.screening import time_calls
from warmup.measuring.selection import Work, doubtful_us, make_fused_row, make_row
from warmup.measuring.trial_process import TrialNotRunError, TrialProcess, TrialResult, own_command
from warmup.measuring.trials import run_trial
from warmup.table import Policy
from warmup.tuning.size_range import look_elsewhere
from warmup.tuning.trials import bare_trial, challengers, region_trial, work_of


@dataclass
class Tuner:
    """Measures questions about *device* by *method*. A context manager: it ends its child process.

    ``tolerance`` is the largest relative L2 error against the reference, by dtype of the output.
    ``options`` are those of inductor that serving shares. ``not_tuned`` says, by key, why a
    question was given up, and ``library_rows`` holds what is served where it has no row;
    ``not_fused`` says why a row was measured without what follows the product.
    """

    device: torch.device
    method: Method
    tolerance: Mapping[str, float]
    seed: int = 0
    process: TrialProcess = field(default_factory=lambda: TrialProcess(own_command()))
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    not_tuned: dict[str, str] = field(default_factory=dict)
    not_fused: dict[str, str] = field(default_factory=dict)
    library_rows: dict[str, Row] = field(default_factory=dict)
    _peaks: Peaks | None = None
    _knows_peaks: bool = False
    _results: dict[tuple[GemmProblem, int | None, tuple[Winner, ...]], TrialResult] = field(
        default_factory=dict
    )
    _clocks: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            self.process.start()  # it imports torch while the model is loaded
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process, if there is one; closing twice is fine."""
        self.process.close()

    def measure(self, question: Question) -> Tuned | None:
        """Return the row for a GEMM selection; None when no candidate could be measured.

        Where something may be fused into the GEMM the best candidates are measured with it too,
        and where a size is a range, at smaller sizes of it.
        """
        if question.searched is not None:
            logger.debug("searched %s: %s", question.searched, question.key)
        tuned, region = self._measure_bare(question), question.region
        if tuned is None:
            return None
        if region is not None and self.method.fused_top_k:
            if worst_regret_over_bound(tuned.row.evidence) is None:
                tuned = self._measure_fused(question, tuned, region)
            else:
                self.not_fused[question.key] = "all lose more along the range than they may"
        return replace(tuned, searched=question.searched)

    def _measure_bare(self, question: Question) -> Tuned | None:
        library = question.library
        assert library is not None
        try:
            result = self._run(question)
        except TrialNotRunError as error:
            self._give_up(question.key, library, str(error))
            return None
        if result.clock_mhz is not None:
            self._clocks.append(result.clock_mhz)
        uncompiled = (
            Outcome(winner=winner, rejection=Rejection.COMPILE, said=said)
            for winner, said in question.uncompiled.items()
        )
        judge_it = partial(
            self._judge,
            question.key,
            library=library,
            work=work_of(question),
            clock_mhz=result.clock_mhz,
            search=question.searched.search if question.searched else Search.DEFAULT,
        )
        outcomes = (*result.outcomes, *uncompiled)
        tuned = judge_it(outcomes)
        if tuned is None or not question.smaller_sizes:
            return tuned
        winner, places = look_elsewhere(
            question, outcomes, tuned.row.winner, self.method, lambda one: self._run(one).outcomes
        )
        if winner != tuned.row.winner:
            tuned = judge_it(places[-1].outcomes, winner=winner) or tuned
        return with_range_regret(tuned, places, library, self.method)

    def _measure_fused(self, question: Question, bare: Tuned, region: Region) -> Tuned:
        """Return the row that follows from candidates as they will run; *bare* when none did."""
        library = question.library
        assert library is not None
        trial = region_trial(question, region, self.method, self.tolerance, self.seed)
        trial = replace(trial, options=self.options)
        started = time.monotonic()
        try:
            outcomes = self.process.run(trial).outcomes
            others = [
                one
                for one in challengers(bare, library, region, outcomes[0].time_us)
                if is_within_bound(one, bare)
            ]
            if others := others[: self.method.fused_top_k]:
                every = (*trial.candidates, *map(Candidate, others))
                outcomes = self.process.run(replace(trial, candidates=every)).outcomes
        except TrialNotRunError as error:
            self.not_fused[question.key] = str(error)
            return bare
        seconds = time.monotonic() - started
        logger.debug("%d as they run in %.2f s: %s", len(outcomes), seconds, question.key)
        work = work_of(question)
        peaks = self._peaks_here() if work is not None else None
        fused = make_fused_row(bare, outcomes, library, self.method, work=work, peaks=peaks)
        if fused is None or outcomes[0].time_us is None:
            self.not_fused[question.key] = outcomes[0].said or "no candidate ran"
            return bare
        if not is_within_bound(fused.row.winner, bare):
            self.not_fused[question.key] = f"{fused.row.winner} loses more along the range"
            return bare
        return with_bare_range_regret(bare, fused)

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Tuned | None:
        """Return the row for *calls*, timed in this process; None when none of them ran."""
        outcomes = time_calls(calls, library, self.device, self.method)
        return self._judge(key, outcomes, library)

    def look(self, *, again: bool = False) -> tuple[str, ...]:
        """Return what makes measurements on the device doubtful so far; nothing when it is fine.

        When it is looked at *again*, how busy it is says nothing: that was this build.
        """
        own = {os.getpid(), *filter(None, [self.process.pid])}
        condition = read_condition(self.device, frozenset(own))
        if condition.unknown is not None:
            return (f"not checked: {condition.unknown}",)
        if again:
            condition = replace(condition, used_percent=None)
        dropped = clock_dropped(self._clocks)
        return (*condition.complaints, *((dropped,) if dropped else ()))

    @property
    def known_peaks(self) -> Peaks | None:
        """The measured peaks, if a question asked for them."""
        return self._peaks

    def peaks(self) -> Peaks | None:
        """Return the measured peaks of the device; None on a CPU."""
        if not self._knows_peaks:
            self._peaks, self._knows_peaks = measured_peaks(self.device), True
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return self._peaks

    def _run(self, question: Question) -> TrialResult:
        """Run the trial of the product alone, unless the same product was measured before.

        In the child what follows a product is not part of it; a CPU's library call may hold it.

        Raises:
            TrialNotRunError: it could not be run at all.
        """
        live, count = question.live, len(question.candidates)
        problem = question.problem if live else question.problem.alone
        same = problem, question.size, tuple(one.winner for one in question.candidates)
        if same not in self._results:
            started = time.monotonic()
            floor = self._floor_us(work_of(question))
            trial = replace(
                bare_trial(question, self.method, self.tolerance, self.seed),
                floor_us=floor,
                doubtful_us=None if floor is None else doubtful_us(floor),
            )
            self._results[same] = _run_here(trial, live) if live else self.process.run(trial)
            seconds = time.monotonic() - started
            where = "" if question.size is None else f" at {question.size}"
            logger.debug("%d candidates in %.2f s%s: %s", count, seconds, where, problem.key)
        return self._results[same]

    def _judge(
        self,
        key: str,
        outcomes: Sequence[Outcome],
        library: Winner,
        *,
        work: Work | None = None,
        clock_mhz: int | None = None,
        search: Search = Search.DEFAULT,
        winner: Winner | None = None,
    ) -> Tuned | None:
        tuned = make_row(
            key,
            outcomes,
            library,
            self.method,
            work=work,
            peaks=self._peaks_here() if work is not None else None,
            clock_mhz=clock_mhz,
            search=search,
            winner=winner,
        )
        if tuned is None:
            said = next((one.said for one in outcomes if one.said), "no candidate was left")
            self._give_up(key, library, said)
        elif self.not_tuned.pop(key, None) is not None:  # asked again, by another layer or bucket
            del self.library_rows[key]
        return tuned

    def _give_up(self, key: str, library: Winner, said: str) -> None:
        self.not_tuned[key] = said
        nothing = Evidence(
            time_us=math.inf, library_us=None, runner_up=None, runner_up_us=None, tried=0
        )
        self.library_rows[key] = Row(library, nothing)

    def _peaks_here(self) -> Peaks | None:
        """Return the peaks that bound a time: operands in a warm cache come from no memory."""
        peaks = self.peaks()
        if peaks is None or self.method.l2 is L2.COLD:
            return peaks
        return replace(peaks, gbps=math.inf)

    def _floor_us(self, work: Work | None) -> float | None:
        peaks = self._peaks_here() if work is not None else None
        if peaks is None or work is None:
            return None
        return share_of_peak(peaks, work.dtype, work.flops, work.moved, 1.0) or None


def make_tuner(policy: Policy, device: torch.device) -> Tuner:
    """Return a tuner that measures on *device* as *policy* says."""
    timing = policy.timing
    process = TrialProcess(own_command(workers=timing.fused_top_k > 0))
    return Tuner(
        device, timing, policy.tolerance, policy.seed, process=process, options=policy.options
    )


def _run_here(trial: Trial, live: LiveTrial) -> TrialResult:
    with torch.no_grad():
        return TrialResult(tuple(run_trial(trial, live.make_sets, live.make_call)))
