"""`run_trial`: checks and times the candidates of one trial in this process, confirms the winner.

A candidate that faults or hangs takes this process with it; `warmup.measuring.trial_process` runs
trials in a child process for that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import torch

from warmup.core.method import L2
from warmup.core.rows import Rejection
from warmup.core.trial import Candidate, Operands, Outcome, TimedCall, Trial
from warmup.measuring.clock import run_rounds, wall_us
from warmup.measuring.operands import MAX_OPERAND_SETS
from warmup.measuring.reference import judge_output, reference_of, widened
from warmup.measuring.screening import (
    FINAL_ROUNDS,
    CandidateRun,
    Screening,
    StageCallback,
)
from warmup.measuring.selection import select_winner

_WALL_FACTOR: Final = 1.5
_CPU_WALL_FACTOR: Final = 4.0
_WALL_SLACK_US: Final = 200.0  # for all calls of one check together
_WALL_US: Final = 3000.0  # of calls in one check
_MOST_WALL_CALLS: Final = 200
_FRESH_SEED: Final = 1_000_003


MakeSets = Callable[[int, int], Operands]  # of a seed and the largest number of sets
MakeCall = Callable[[Candidate, Operands], TimedCall]
Outputs = Sequence[torch.Tensor]
MakeReference = Callable[[Operands], Outputs | None]  # None without a reference


def run_trial(
    trial: Trial,
    make_sets: MakeSets,
    make_call: MakeCall,
    *,
    make_reference: MakeReference | None = None,
    on_stage: StageCallback = lambda _winner, _stage: None,
    rejected: Collection[Outcome] = (),
    is_lost: Callable[[BaseException], bool] = lambda _error: False,
) -> list[Outcome]:
    """Return the outcome of each candidate of *trial*, in order.

    Every candidate is called once on a poisoned output, and the output is compared with the
    reference, or with the control's where there is none: if the control fails then, all do. Then
    all are timed in turn, and the fastest again until their spread is narrow or the retries are
    used up. The winner is called once more on fresh data, and its time is compared with
    the measured peaks and the wall clock. An implausible time is measured again after a pause, a
    few times. If the winner fails, it is rejected and the next is confirmed; if that is the
    control, and its time is implausible, no other candidate wins.

    *make_reference* computes the expected outputs where they are not those of the GEMM alone.
    *on_stage* is called before a candidate runs. Candidates in *rejected* are not run. An error
    after which *is_lost* says that the device is unusable is raised.

    Raises:
        torch.OutOfMemoryError: the operands do not fit into memory.
    """
    known = {outcome.winner: outcome for outcome in rejected}
    runs = [CandidateRun(candidate.winner) for candidate in trial.candidates]
    for run in runs:
        run.outcome = known.get(run.winner, run.outcome)
    # With a warm L2 all calls share one operand set, so that it stays in the cache.
    sets = make_sets(trial.seed, 1 if trial.method.l2 is L2.WARM else MAX_OPERAND_SETS)
    device = torch.device(trial.device)
    screening = Screening(
        runs,
        trial.library,
        device,
        trial.method,
        sets=sets.count,
        on_stage=on_stage,
        is_lost=is_lost,
    )
    checks = _Checks(trial, device, make_call, screening, make_reference)
    checks.check_outputs(sets)
    screening.run()
    checks.confirm_winner(make_sets)
    screening.time_enqueueing()
    return [run.outcome for run in runs]


class _Checks:
    """The checks of one trial: all candidates before the screening, the winner after it."""

    def __init__(
        self,
        trial: Trial,
        device: torch.device,
        make_call: MakeCall,
        screening: Screening,
        make_reference: MakeReference | None,
    ) -> None:
        self._trial, self._device = trial, device
        self._make_call, self._screening = make_call, screening
        self._make_reference = make_reference or self._gemm_reference
        self._specs = {candidate.winner: candidate for candidate in trial.candidates}

    def check_outputs(self, sets: Operands) -> None:
        """Call each candidate once, and reject it if its output is wrong."""
        reference = self._reference(sets)
        if reference is None and self._trial.tolerance is not None and self._has_lost_control():
            for run in self._screening.runs:
                if run.is_open:
                    run.reject(Rejection.WRONG, "nothing to compare with: the control failed")

        def call_and_compare(run: CandidateRun) -> None:
            run.call = self._make_call(self._specs[run.winner], sets)
            self._compare(run, run.call, sets, reference)

        for run in self._screening.runs:
            if run.is_open:
                self._screening.attempt(run, "check", call_and_compare)

    def confirm_winner(self, make_sets: MakeSets) -> None:
        """Check the winner on fresh data, the peaks and the wall clock, until a winner passes."""
        confirmed: list[CandidateRun] = []
        fresh: tuple[Operands, Outputs | None] | None = None
        while True:
            winner = self._winner()
            if winner is None or winner in confirmed:
                return
            if fresh is None:
                sets = make_sets(self._trial.seed + _FRESH_SEED, 1)
                fresh = sets, self._reference(sets)
            data = fresh

            def confirm(run: CandidateRun, data: tuple[Operands, Outputs | None] = data) -> None:
                call = self._make_call(self._specs[run.winner], data[0])
                self._compare(run, call, *data)
                if run.is_open:
                    self._check_peaks(run)
                if run.is_open:
                    self._check_wall_clock(run)

            self._screening.attempt(winner, "confirm", confirm)
            if winner.is_open:
                confirmed.append(winner)  # its new times may have made another candidate the winner
            elif self._screening.measure_again(winner):
                confirmed.clear()  # every time is new
            else:
                self._screening.time_finalists()  # the next candidate may only have been screened

    def _has_lost_control(self) -> bool:
        runs = self._screening.runs
        return any(run.winner == self._trial.library and not run.is_open for run in runs)

    def _winner(self) -> CandidateRun | None:
        """Return the winner by the times so far; None when no open candidate wins."""
        runs = self._screening.runs
        outcomes = [run.outcome for run in runs]
        selected = select_winner(outcomes, self._trial.library, self._trial.method)
        if selected is None or selected.outcome.rejection is not None:
            return None
        return next(run for run in runs if run.outcome is selected.outcome)

    def _gemm_reference(self, sets: Operands) -> Outputs | None:
        reference = reference_of(self._trial, sets.views(0))
        return None if reference is None else [reference]

    def _reference(self, sets: Operands) -> Outputs | None:
        """Return the expected outputs; without a reference, the outputs of the control."""
        if self._trial.tolerance is None:
            return None
        reference = self._make_reference(sets)
        library = self._trial.library
        control = next((run for run in self._screening.runs if run.winner == library), None)
        if reference is not None or control is None or not control.is_open:
            return reference
        outputs: list[torch.Tensor] = []

        def call_control(run: CandidateRun) -> None:
            returned = self._make_call(self._specs[run.winner], sets)(0)
            self._synchronize()
            outputs.extend(widened(out).clone() for out in _outputs(returned, sets))

        self._screening.attempt(control, "reference", call_control)
        return outputs or None

    def _compare(
        self, run: CandidateRun, call: TimedCall, sets: Operands, reference: Outputs | None
    ) -> None:
        sets.poison()
        returned = call(0)
        self._synchronize()
        if reference is None or self._trial.tolerance is None:
            return
        for out, expected in zip(_outputs(returned, sets), reference, strict=True):
            name = str(out.dtype).removeprefix("torch.")
            tolerance = self._trial.tolerances.get(name, self._trial.tolerance)
            error, rejection, message = judge_output(out, expected, tolerance)
            worst = max(error, run.outcome.error or 0.0)
            run.outcome = replace(run.outcome, error=worst)
            if rejection is not None:
                run.reject(rejection, message)
                return

    def _check_peaks(self, winner: CandidateRun) -> None:
        """Time a winner above or far below the peaks again, and reject it if still above them."""
        floor, doubtful = self._trial.floor_us, self._trial.doubtful_us
        is_slow = doubtful is not None and winner.time_us > doubtful
        if floor is None or (winner.time_us >= floor and not is_slow):
            return
        assert winner.batch is not None
        again = run_rounds({winner.winner: winner.batch}, FINAL_ROUNDS)[winner.winner]
        winner.outcome = replace(winner.outcome, samples=again)
        winner.reject_over_peak(again.median, floor)

    def _check_wall_clock(self, winner: CandidateRun) -> None:
        """Reject the winner if the host's clock contradicts its device time.

        Calls in a row end when the host has enqueued them all or when the device has run them all,
        whichever is later. A correct device time therefore accounts for the wall-clock time.
        """
        assert winner.call is not None
        claimed = winner.time_us
        calls = max(3, min(_MOST_WALL_CALLS, int(_WALL_US / claimed)))
        enqueued, finished = min(
            (wall_us(winner.call, self._device, calls) for _ in range(3)),
            key=lambda pair: pair[1],
        )
        # On a CPU a call returns when it is finished, and other processes slow it down.
        host = 0.0 if self._device.type == "cpu" else enqueued
        factor = _CPU_WALL_FACTOR if self._device.type == "cpu" else _WALL_FACTOR
        explained = max(host, claimed) * factor + _WALL_SLACK_US / calls
        if finished > explained:
            message = f"{claimed:.2f} us, while the wall clock says {finished:.2f} us"
            winner.reject(Rejection.IMPLAUSIBLE, message)

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.cuda.synchronize(self._device)


def _outputs(returned: object, sets: Operands) -> Outputs:
    """Return the outputs of a call: what it *returned*, or the output tensor that it wrote."""
    if isinstance(returned, tuple):
        return returned
    return [returned if isinstance(returned, torch.Tensor) else sets.out(0, at_offset=True)]
