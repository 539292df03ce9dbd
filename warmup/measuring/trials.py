"""Running one trial in this process: check every candidate, time them in turn, confirm the winner.

Nothing here protects from a candidate that faults or hangs; `warmup.measuring.trial_process` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import torch

from warmup.core.method import L2
from warmup.core.rows import Rejection
from warmup.core.trial import Candidate, Operands, Outcome, TimedCall, Trial
from warmup.measuring.clock import wall_us
from warmup.measuring.operands import MAX_OPERAND_SETS
from warmup.measuring.reference import judge_output, reference_of, widened
from warmup.measuring.rounds import run_rounds
from warmup.measuring.screening import FINAL_ROUNDS, At, Contender, Contest
from warmup.measuring.selection import choose

_OVER_PEAK: Final = 1.10  # a peak is measured too; this far above it a time cannot be true
_WALL_FACTOR: Final = 1.5
_CPU_WALL_FACTOR: Final = 4.0
_WALL_SLACK_US: Final = 200.0  # for all calls together
_WALL_US: Final = 3000.0
_MOST_WALL_CALLS: Final = 200
_FRESH_SEED: Final = 1_000_003


MakeSets = Callable[[int, int], Operands]  # seed, most sets
MakeCall = Callable[[Candidate, Operands], TimedCall]
Outputs = Sequence[torch.Tensor]
MakeReference = Callable[[Operands], Outputs | None]  # None where it is unknown


def run_trial(
    trial: Trial,
    make_sets: MakeSets,
    make_call: MakeCall,
    *,
    make_reference: MakeReference | None = None,
    at: At = lambda _winner, _stage: None,
    rejected: Collection[Outcome] = (),
    is_lost: Callable[[BaseException], bool] = lambda _error: False,
) -> list[Outcome]:
    """Return what came of each candidate of *trial*, in order.

    Every candidate is called once on a poisoned output and compared with the reference, then all
    are timed in turn, then the fastest again, until their spread is narrow or the retries are used
    up. The winner is called once more on fresh data, and its time held against the wall clock and
    the measured peaks; when it fails there it is rejected and the next one is looked at.
    *make_reference* says what is computed from an operand set, where that is not the product alone.

    *at* is told before a candidate runs. Those in *rejected* are not run. An error after which the
    device cannot be used, as *is_lost* tells, is raised.

    Raises:
        torch.OutOfMemoryError: the operands do not fit into memory.
    """
    known = {outcome.winner: outcome for outcome in rejected}
    contenders = [Contender(candidate.winner) for candidate in trial.candidates]
    for contender in contenders:
        contender.outcome = known.get(contender.winner, contender.outcome)
    # Calls that are to find their operands in the cache share one set.
    sets = make_sets(trial.seed, 1 if trial.method.l2 is L2.WARM else MAX_OPERAND_SETS)
    device = torch.device(trial.device)
    contest = Contest(
        contenders,
        trial.library,
        device,
        trial.method,
        sets=sets.count,
        at=at,
        is_lost=is_lost,
    )
    examiner = _Examiner(trial, device, make_call, contest, make_reference)
    examiner.check(sets)
    contest.run()
    examiner.confirm(make_sets)
    return [contender.outcome for contender in contenders]


class _Examiner:
    """Checks the contenders of one trial before the contest, and the winner after it."""

    def __init__(
        self,
        trial: Trial,
        device: torch.device,
        make_call: MakeCall,
        contest: Contest,
        make_reference: MakeReference | None,
    ) -> None:
        self._trial, self._device = trial, device
        self._make_call, self._contest = make_call, contest
        self._make_reference = make_reference or self._product
        self._specs = {candidate.winner: candidate for candidate in trial.candidates}

    def check(self, sets: Operands) -> None:
        """Call each contender once; those that are wrong are out."""
        reference = self._reference(sets)

        def first_call(contender: Contender) -> None:
            contender.call = self._make_call(self._specs[contender.winner], sets)
            self._compare(contender, contender.call, sets, reference)

        for contender in self._contest.contenders:
            if contender.is_open:
                self._contest.attempt(contender, "check", first_call)

    def confirm(self, make_sets: MakeSets) -> None:
        """Hold the winner against fresh data, the peaks and the wall clock, until one stands."""
        confirmed: list[Contender] = []
        fresh: tuple[Operands, Outputs | None] | None = None
        while True:
            winner = self._winner()
            if winner is None or winner in confirmed:
                return
            if fresh is None:
                sets = make_sets(self._trial.seed + _FRESH_SEED, 1)
                fresh = sets, self._reference(sets)
            data = fresh

            def look_again(one: Contender, data: tuple[Operands, Outputs | None] = data) -> None:
                call = self._make_call(self._specs[one.winner], data[0])
                self._compare(one, call, *data)
                if one.is_open:
                    self._check_peaks(one)
                if one.is_open:
                    self._check_wall_clock(one)

            self._contest.attempt(winner, "confirm", look_again)
            if winner.is_open:
                confirmed.append(winner)  # another one leads if its second look was slower
            else:
                self._contest.settle()  # who is next was only ranked so far

    def _winner(self) -> Contender | None:
        """Return the contender that is to win, as things stand; None when nobody has a time."""
        contenders = self._contest.contenders
        outcomes = [one.outcome for one in contenders]
        verdict = choose(outcomes, self._trial.library, self._trial.method)
        if verdict is None:
            return None
        return next(one for one in contenders if one.outcome is verdict.outcome)

    def _product(self, sets: Operands) -> Outputs | None:
        known = reference_of(self._trial, sets.views(0))
        return None if known is None else [known]

    def _reference(self, sets: Operands) -> Outputs | None:
        """Return what should come out; where that is unknown, what the control says it is."""
        if self._trial.tolerance is None:
            return None
        known = self._make_reference(sets)
        library = self._trial.library
        control = next((one for one in self._contest.contenders if one.winner == library), None)
        if known is not None or control is None or not control.is_open:
            return known
        found: list[torch.Tensor] = []

        def ask(one: Contender) -> None:
            made = self._make_call(self._specs[one.winner], sets)(0)
            self._synchronize()
            found.extend(widened(one).clone() for one in _outputs(made, sets))

        self._contest.attempt(control, "reference", ask)
        return found or None

    def _compare(
        self, contender: Contender, call: TimedCall, sets: Operands, reference: Outputs | None
    ) -> None:
        sets.poison()
        found = call(0)
        self._synchronize()
        if reference is None or self._trial.tolerance is None:
            return
        for out, expected in zip(_outputs(found, sets), reference, strict=True):
            error, rejection, said = judge_output(out, expected, self._trial.tolerance)
            worst = max(error, contender.outcome.error or 0.0)
            contender.outcome = replace(contender.outcome, error=worst)
            if rejection is not None:
                contender.reject(rejection, said)
                return

    def _check_peaks(self, winner: Contender) -> None:
        """Measure again what is faster than the peaks allow, or far too slow; reject the first."""
        floor, doubtful = self._trial.floor_us, self._trial.doubtful_us
        is_slow = doubtful is not None and winner.time_us > doubtful
        if floor is None or (winner.time_us >= floor and not is_slow):
            return
        assert winner.batch is not None
        again = run_rounds({winner.winner: winner.batch}, FINAL_ROUNDS)[winner.winner]
        winner.outcome = replace(winner.outcome, samples=again)
        if again.median * _OVER_PEAK < floor:
            said = f"{again.median:.2f} us, while the measured peaks allow {floor:.2f} us"
            winner.reject(Rejection.IMPLAUSIBLE, said)

    def _check_wall_clock(self, winner: Contender) -> None:
        """Reject a time that the host's clock contradicts.

        Calls in a row are finished when the host has enqueued the last or the device has worked off
        all, whichever is later: a device time that is true explains the wait.
        """
        assert winner.call is not None
        claimed = winner.time_us
        calls = max(3, min(_MOST_WALL_CALLS, int(_WALL_US / claimed)))
        enqueued, finished = min(
            (wall_us(winner.call, self._device, calls) for _ in range(3)),
            key=lambda pair: pair[1],
        )
        # On a CPU a call is over when it is enqueued, and other work on it counts as its own.
        host = 0.0 if self._device.type == "cpu" else enqueued
        factor = _CPU_WALL_FACTOR if self._device.type == "cpu" else _WALL_FACTOR
        explained = max(host, claimed) * factor + _WALL_SLACK_US / calls
        if finished > explained:
            said = f"{claimed:.2f} us, while the wall clock says {finished:.2f} us"
            winner.reject(Rejection.IMPLAUSIBLE, said)

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.cuda.synchronize(self._device)


def _outputs(made: object, sets: Operands) -> Outputs:
    """Return what a call returned when it makes its own outputs, else the one it was given."""
    if isinstance(made, tuple):
        return made
    return [made if isinstance(made, torch.Tensor) else sets.out(0, at_offset=True)]
