"""`BareTrials`: trials of GEMMs without their epilogue, each measured once for all epilogues."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from warmup.core.events import logger
from warmup.core.method import Method
from warmup.core.rows import Winner
from warmup.core.trial import Trial
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import LiveTrial, Question
from warmup.measuring.machine_watch import MachineWatch
from warmup.measuring.measured_rows import doubtful_us
from warmup.measuring.trial_process import TrialProcess, TrialResult
from warmup.measuring.trials import run_trial
from warmup.tuning.row_maker import PeakBounds
from warmup.tuning.trials import bare_trial, work_of

# A GEMM, the size of a range that it was timed at, and its candidates.
_Tried = tuple[GemmProblem, int | None, tuple[Winner, ...]]


@dataclass
class BareTrials:
    """Runs trials in *process*, or in this process where a question's calls are live.

    ``method``, ``tolerance`` and ``seed`` are those of `Tuner`.
    """

    process: TrialProcess
    method: Method
    tolerance: Mapping[str, float]
    seed: int
    bounds: PeakBounds
    watch: MachineWatch
    _results: dict[_Tried, TrialResult] = field(default_factory=dict)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Callable[[], bool]]:
        """Measure as `MachineWatch.measuring` does; no result that was disturbed is kept."""
        before = len(self._results)
        with self.watch.measuring() as is_disturbed:
            yield is_disturbed
        if is_disturbed():
            for tried in [*self._results][before:]:
                del self._results[tried]

    def run(self, question: Question) -> TrialResult:
        """Run the trial of the bare GEMM, unless the same GEMM was measured before.

        In the child process the epilogue makes no difference; in this process a CPU's library call
        may contain it. A result whose control failed as it may not the next time is not kept: there
        is no row, and a later layer or bucket tries again.

        Raises:
            TrialNotRunError: the trial could not be run at all.
        """
        live, count = question.live, len(question.candidates)
        problem = question.problem if live else question.problem.without_epilogue
        tried = problem, question.size, tuple(one.winner for one in question.candidates)
        if (known := self._results.get(tried)) is not None:
            return known
        started = time.monotonic()
        floor = self.bounds.floor_us(work_of(question))
        trial = replace(
            bare_trial(question, self.method, self.tolerance, self.seed),
            floor_us=floor,
            doubtful_us=None if floor is None else doubtful_us(floor),
        )
        result = _run_here(trial, live) if live else self.process.run(trial)
        control = next((one for one in result.outcomes if one.winner == trial.library), None)
        rejection = None if control is None else control.rejection
        if rejection is None or not rejection.may_be_noise:
            self._results[tried] = result
        seconds = time.monotonic() - started
        at_size = "" if question.size is None else f" at {question.size}"
        logger.debug("%d candidates in %.2f s%s: %s", count, seconds, at_size, problem.key)
        return result


def _run_here(trial: Trial, live: LiveTrial) -> TrialResult:
    with torch.no_grad():
        return TrialResult(tuple(run_trial(trial, live.make_sets, live.make_call)))
