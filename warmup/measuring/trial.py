"""`run_trial`: checks and times the candidates of one trial in this process, confirms the winner.

A candidate that faults or hangs takes this process with it: `warmup.measuring.trial_process`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from warmup.core.errors import BuildError
from warmup.core.roofline import dtype_name
from warmup.core.rows import L2, Method, Rejection, Winner
from warmup.core.trial import (
    Candidate,
    LiveSearch,
    Operands,
    Outcome,
    RegionKernels,
    TimedCall,
    Trial,
)
from warmup.measuring.clock import Batch, batch_of, run_rounds, synchronize, wall_us
from warmup.measuring.reference import (
    MAX_OPERAND_SETS,
    NARROW_TOLERANCE,
    judge_like,
    judge_output,
    reference_of,
    widened,
)
from warmup.measuring.row_bits import Probe, bits_of_rows, has_same_bits
from warmup.measuring.selection import NEAR_TIE, select_winner

# `Screening`: times all candidates for a few rounds, then the fastest until they are stable.

# Called before a candidate runs, with the name of the stage.
StageCallback = Callable[[Winner, str], None]

SCREENING_ROUNDS: Final = 3  # rounds of all candidates
FINAL_ROUNDS: Final = 12  # rounds of the finalists, repeated up to `_RETRIES` times
_RETRIES: Final = 3
OVER_PEAK: Final = 1.10  # peaks are measured too; a rate above this share cannot be true
# Before what noise may have refused is measured again. Seconds: a passing load is over by then.
PAUSES_S: Final = (0.5, 1.0, 2.0)
_FINAL_SHARE: Final = 1.15  # times the fastest time: slower candidates are no finalists
_FINALISTS: Final = 8
_MAX_MESSAGE: Final = 300
_COMPILING: Final = ("Compil", "Inductor", "Lowering")  # in the class names of compilers' errors


@dataclass
class CandidateRun:
    """A candidate while it is checked and timed, with its outcome so far."""

    winner: Winner
    call: TimedCall | None = None
    batch: Batch | None = None
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = Outcome(winner=self.winner)

    @property
    def is_open(self) -> bool:
        return self.outcome.rejection is None

    @property
    def time_us(self) -> float:
        return self.outcome.time_us or float("inf")

    def reject(self, reason: Rejection, message: str) -> None:
        self.outcome = replace(self.outcome, rejection=reason, said=message[:_MAX_MESSAGE])

    def reject_over_peak(self, time_us: float, floor_us: float) -> None:
        if time_us * OVER_PEAK < floor_us:
            message = f"{time_us:.2f} us, while the measured peaks allow {floor_us:.2f} us"
            self.reject(Rejection.IMPLAUSIBLE, message)


class Screening:
    """Times the candidates for one key on *device* by *method*; *library* is the control.

    The control cannot win where it is *barred*. An error rejects its candidate, unless *is_lost*
    says that the device is unusable: then it is raised.
    """

    def __init__(
        self,
        runs: Sequence[CandidateRun],
        library: Winner,
        device: torch.device,
        method: Method,
        *,
        sets: int = 1,
        on_stage: StageCallback = lambda _winner, _stage: None,
        is_lost: Callable[[BaseException], bool] = lambda _error: False,
        barred: Winner | None = None,
    ) -> None:
        self.runs, self._barred = list(runs), barred
        self._library, self._device, self._method = library, device, method
        self._sets, self._on_stage, self._is_lost = sets, on_stage, is_lost
        self._repeats: Counter[Winner] = Counter()

    def run(self) -> None:
        self.screen(self.runs)
        self.time_finalists()

    def screen(self, runs: Sequence[CandidateRun]) -> None:
        for run in runs:
            if run.is_open:
                self.attempt(run, "prepare", self._prepare)
        self._add_rounds([run for run in runs if run.is_open], SCREENING_ROUNDS)

    def choose_control(self, winners: Sequence[Winner], band: float) -> Winner:
        """Make the first of *winners* within *band* of the fastest of them the control."""
        timed = [run for run in self.runs if run.is_open and run.winner in winners]
        timed.sort(key=lambda run: winners.index(run.winner))
        limit = min((run.time_us for run in timed), default=0.0) * (1 + band)
        near = [run.winner for run in timed if run.time_us <= limit]
        self._library = near[0] if near else winners[0]
        return self._library

    def time_finalists(self) -> None:
        """Time the finalists until their spread is narrow or the retries are used up."""
        for number in range(_RETRIES):
            if number:
                time.sleep(PAUSES_S[number - 1])
            self._add_rounds(self.finalists(), FINAL_ROUNDS)
            if all(map(self._is_stable, self.finalists())):
                return

    def measure_again(self, refused: CandidateRun) -> bool:
        """After a pause, open *refused* and time it and the other finalists afresh.

        False, and nothing is done, when it was refused for another reason than an implausible time,
        or was measured again as often as there are `PAUSES_S`.
        """
        is_implausible = refused.outcome.rejection is Rejection.IMPLAUSIBLE
        if not is_implausible or self._repeats[refused.winner] == len(PAUSES_S):
            return False
        self._pause(refused)
        refused.outcome = replace(refused.outcome, rejection=None, said="")
        for run in self.runs:
            if run.is_open and run.outcome.samples is not None:
                run.outcome = replace(run.outcome, is_final=False)  # times until now only rank
        self.time_finalists()
        return True

    def finalists(self) -> list[CandidateRun]:
        """Return the candidates near the fastest, fastest first, and the control."""
        timed = [run for run in self.runs if run.is_open and run.outcome.time_us]
        ranked = sorted(timed, key=lambda run: run.time_us)
        if not ranked:
            return []
        first = next((run for run in ranked if run.winner != self._barred), ranked[0])
        limit = first.time_us * _FINAL_SHARE
        fastest = [run for run in ranked if run.time_us <= limit][:_FINALISTS]
        control = [run for run in ranked if run.winner == self._library]
        return [*{run.winner: run for run in (*fastest, *control)}.values()]

    def attempt(self, run: CandidateRun, stage: str, step: Callable[[CandidateRun], None]) -> None:
        """Call *step* with *run*; an error rejects the candidate, or says that the device is lost.

        Where the control runs out of memory, it is tried again after a pause, `PAUSES_S` often.
        """
        while True:
            self._on_stage(run.winner, stage)
            try:
                step(run)
            except Exception as error:  # noqa: BLE001  a candidate may raise anything
                self._reject(run, error)
            is_control = run.winner == self._library
            lacks_memory = run.outcome.rejection is Rejection.OUT_OF_MEMORY
            if not (is_control and lacks_memory) or self._repeats[run.winner] == len(PAUSES_S):
                return
            self._pause(run)
            run.outcome = replace(run.outcome, rejection=None, said="")

    def _pause(self, run: CandidateRun) -> None:
        time.sleep(PAUSES_S[self._repeats[run.winner]])
        self._repeats[run.winner] += 1

    def _prepare(self, run: CandidateRun) -> None:
        assert run.call is not None
        run.batch = batch_of(run.call, self._device, self._method.l2, self._sets)

    def _add_rounds(self, runs: Sequence[CandidateRun], rounds: int) -> None:
        remaining = list(runs)
        while remaining:
            batches = {run.winner: run.batch for run in remaining if run.batch is not None}
            started: list[Winner] = []

            def before_each(winner: Winner, started: list[Winner] = started) -> None:
                started.append(winner)
                self._on_stage(winner, "time")

            try:
                times = run_rounds(batches, rounds, before_each)
            except Exception as error:  # noqa: BLE001  as above
                failed = next(run for run in remaining if run.winner == started[-1])
                self._reject(failed, error)
                remaining.remove(failed)
                continue
            for run in remaining:
                before, new = run.outcome.samples, times[run.winner]
                # Times of the screening rounds only rank: the device was idle before them.
                keeps = before is not None and run.outcome.is_final
                samples = before + new if before is not None and keeps else new
                run.outcome = replace(run.outcome, samples=samples, is_final=rounds == FINAL_ROUNDS)
            return

    def _is_stable(self, run: CandidateRun) -> bool:
        outcome = run.outcome
        return (
            outcome.is_final
            and outcome.samples is not None
            and outcome.samples.spread <= self._method.max_spread
        )

    def _reject(self, run: CandidateRun, error: Exception) -> None:
        if self._is_lost(error):
            raise error
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        run.reject(reason_for(error), message)


def time_calls(
    calls: Mapping[Winner, TimedCall], library: Winner, device: torch.device, method: Method
) -> list[Outcome]:
    """Return the outcomes of *calls*, timed in this process; *library* is the control."""
    runs = [CandidateRun(winner, call) for winner, call in calls.items()]
    Screening(runs, library, device, method).run()
    return [run.outcome for run in runs]


def reason_for(error: BaseException) -> Rejection:
    """Return the reason for rejecting the candidate that raised *error*."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Rejection.OUT_OF_MEMORY
    name, text = type(error).__name__, str(error).lower()
    # Triton's OutOfResources, wrapped by inductor or not; too many threads or shared memory.
    if "OutOfResources" in name or "out of resource" in text or "invalid argument" in text:
        return Rejection.LAUNCH
    is_compiling = isinstance(error, BuildError) or any(word in name for word in _COMPILING)
    return Rejection.COMPILE if is_compiling else Rejection.CRASHED


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
More = Callable[[Sequence[Outcome]], Collection[Winner]]


def run_trial(
    trial: Trial,
    make_sets: MakeSets,
    make_call: MakeCall,
    *,
    make_reference: MakeReference | None = None,
    more: More | None = None,
    kernels_of: Callable[[Winner], RegionKernels | None] = lambda _winner: None,
    on_stage: StageCallback = lambda _winner, _stage: None,
    rejected: Collection[Outcome] = (),
    is_lost: Callable[[BaseException], bool] = lambda _error: False,
) -> list[Outcome]:
    """Return the outcome of each candidate of *trial*, in order.

    With *more* the control is run first, and then those that *more* returns for the outcomes so
    far, until it returns none; the other candidates have no outcome.

    Every candidate is called once on a poisoned output, and the output is compared with the
    reference, or with the control's where there is none: if the control fails then, all do. Then
    all are timed in turn, and the fastest again until their spread is narrow or the retries are
    used up. The winner is called once more on fresh data, and its time is compared with the
    measured peaks and the wall clock. An implausible time is measured again after a pause, a few
    times. If the winner fails, it is rejected and the next is confirmed; if that is the control,
    and its time is implausible, no other candidate wins. Candidates in *rejected* are not run.

    Raises torch's OutOfMemoryError where the operands do not fit, and an error after which
    *is_lost* says that the device is unusable.
    """
    known = {outcome.winner: outcome for outcome in rejected}

    def runs_of(winners: Collection[Winner]) -> list[CandidateRun]:
        runs = [CandidateRun(one.winner) for one in trial.candidates if one.winner in winners]
        for run in runs:
            run.outcome = known.get(run.winner, run.outcome)
        return runs

    every = [candidate.winner for candidate in trial.candidates]
    runs = runs_of(every if more is None else [trial.library])
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
        barred=trial.library if trial.bars_library else None,
    )
    checks = _Checks(trial, device, make_call, screening, make_reference)
    reference = checks.reference(sets)
    while runs:
        checks.check_outputs(runs, sets, reference)
        for run in runs:
            run.outcome = replace(run.outcome, kernels=kernels_of(run.winner))
        screening.screen(runs)
        runs = runs_of(more([run.outcome for run in screening.runs])) if more else []
        screening.runs += runs
    if not trial.only_screens:
        screening.time_finalists()
        checks.confirm_winner(make_sets)
    if trial.notes_bits and trial.region is None:
        checks.note_bits(sets)
    return [checks.barred(run.outcome) for run in screening.runs]


class _Checks:
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
        self._make_reference = make_reference
        self._specs = {candidate.winner: candidate for candidate in trial.candidates}
        self._unfused: Outputs | None = None  # of the first candidate that nothing is fused into

    def check_outputs(
        self, runs: Sequence[CandidateRun], sets: Operands, reference: Outputs | None
    ) -> None:
        if reference is None and self._trial.tolerance is not None and self._has_lost_control():
            for run in runs:
                if run.is_open:
                    run.reject(Rejection.WRONG, "nothing to compare with: the control failed")

        def call_and_compare(run: CandidateRun) -> None:
            run.call = self._make_call(self._specs[run.winner], sets)
            outputs = self._compare(run, run.call, sets, reference)
            if self._trial.notes_bits and self._trial.region is not None and run.is_open:
                self._compare_bits(run, outputs)

        for run in sorted(runs, key=lambda run: run.winner.fused is True):
            if run.is_open:
                self._screening.attempt(run, "check", call_and_compare)

    def _compare_bits(self, run: CandidateRun, outputs: Outputs) -> None:
        """Reject *run* where what is fused into it gives other bits than kernels of its own."""
        # A fused operation may read a sum before it is rounded, and be contracted to FMA.
        is_barred = self._trial.bars_library and run.winner == self._trial.library
        if run.winner.fused is not True:
            if self._unfused is None and not is_barred:
                self._unfused = [each.clone() for each in outputs]
        elif self._unfused is None or not all(map(has_same_bits, outputs, self._unfused)):
            run.reject(Rejection.WRONG, "fused, it has other bits than with kernels of its own")

    def confirm_winner(self, make_sets: MakeSets) -> None:
        confirmed: list[CandidateRun] = []
        fresh: tuple[Operands, Outputs | None] | None = None
        while True:
            winner = self._winner()
            if winner is None or winner in confirmed:
                return
            if fresh is None:
                sets = make_sets(self._trial.seed + _FRESH_SEED, 1)
                fresh = sets, self.reference(sets)
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

    def note_bits(self, sets: Operands) -> None:
        """Note the digest of each candidate that was timed; *sets* have other values after that."""
        probe = Probe(self._trial.op, sets)

        def noted(run: CandidateRun, step: int = 1) -> str | None:
            sets.poison()
            returned = self._make_call(self._specs[run.winner], sets)(0)
            synchronize(self._device)
            return bits_of_rows(_outputs(returned, sets)[0], step)

        def first(run: CandidateRun) -> None:
            run.outcome = replace(run.outcome, bits=noted(run))

        def beside_others(run: CandidateRun) -> None:
            if noted(run, 2) != run.outcome.bits:
                run.outcome = replace(run.outcome, bits=None)

        probe.fill()
        timed = [run for run in self._screening.runs if run.outcome.time_us is not None]
        for run in timed:
            self._screening.attempt(run, "bits", first)
        if probe.disturb():
            for run in timed:
                if run.is_open:
                    self._screening.attempt(run, "bits", beside_others)

    def barred(self, outcome: Outcome) -> Outcome:
        """Return *outcome* so that it cannot win where it is that of a barred library."""
        is_barred = self._trial.bars_library and outcome.winner == self._trial.library
        return replace(outcome, is_final=False) if is_barred else outcome

    def _has_lost_control(self) -> bool:
        runs = self._screening.runs
        return any(run.winner == self._trial.library and not run.is_open for run in runs)

    def _winner(self) -> CandidateRun | None:
        runs = self._screening.runs
        outcomes = [self.barred(run.outcome) for run in runs]
        trial = self._trial
        selected = select_winner(
            outcomes, trial.library, trial.method, prefers_fewer=trial.prefers_fewer
        )
        if selected is None or selected.outcome.rejection is not None:
            return None
        return next(run for run in runs if run.winner == selected.outcome.winner)

    def reference(self, sets: Operands) -> Outputs | None:
        if self._trial.tolerance is None:
            return None
        if self._make_reference is not None:
            reference = self._make_reference(sets)
        else:
            of_gemm = reference_of(self._trial, sets.views(0))
            reference = None if of_gemm is None else [of_gemm]
        library = self._trial.library
        control = next((run for run in self._screening.runs if run.winner == library), None)
        if reference is not None or control is None or not control.is_open:
            return reference
        outputs: list[torch.Tensor] = []

        def call_control(run: CandidateRun) -> None:
            returned = self._make_call(self._specs[run.winner], sets)(0)
            synchronize(self._device)
            outputs.extend(widened(out).clone() for out in _outputs(returned, sets))

        self._screening.attempt(control, "reference", call_control)
        return outputs or None

    def _compare(
        self, run: CandidateRun, call: TimedCall, sets: Operands, reference: Outputs | None
    ) -> Outputs:
        sets.poison()
        outputs = _outputs(call(0), sets)
        synchronize(self._device)
        if reference is None or self._trial.tolerance is None:
            return outputs
        for out, expected in zip(outputs, reference, strict=True):
            name = str(out.dtype).removeprefix("torch.")
            tolerance = self._trial.tolerances.get(name, self._trial.tolerance)
            error, rejection, message = judge_output(out, expected, tolerance)
            worst = max(error, run.outcome.error or 0.0)
            run.outcome = replace(run.outcome, error=worst)
            if rejection is not None:
                run.reject(rejection, message)
                break
        return outputs

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
        # Calls in a row end when the host has enqueued them all or the device has run them all,
        # whichever is later.
        assert winner.call is not None
        claimed = winner.time_us
        calls = max(3, min(_MOST_WALL_CALLS, int(_WALL_US / claimed)))
        enqueued, finished = min(
            (wall_us(winner.call, self._device, calls) for _ in range(3)), key=lambda pair: pair[1]
        )
        # On a CPU a call returns when it is finished, and other processes slow it down.
        host = 0.0 if self._device.type == "cpu" else enqueued
        factor = _CPU_WALL_FACTOR if self._device.type == "cpu" else _WALL_FACTOR
        explained = max(host, claimed) * factor + _WALL_SLACK_US / calls
        if finished > explained:
            message = f"{claimed:.2f} us, while the wall clock says {finished:.2f} us"
            winner.reject(Rejection.IMPLAUSIBLE, message)


def _outputs(returned: object, sets: Operands) -> Outputs:
    if isinstance(returned, tuple):
        return returned
    return [returned if isinstance(returned, torch.Tensor) else sets.out(0, at_offset=True)]


# `time_search`: checks and times candidates that are made while others are timed.


def time_search(
    search: LiveSearch,
    device: torch.device,
    method: Method,
    tolerance: Mapping[str, float],
    floor_us: float | None = None,
    *,
    is_worth: Callable[[float], bool] = lambda _time_us: True,
) -> tuple[list[Outcome], Winner]:
    """Return the outcomes of all candidates of *search*, and the control.

    The control is what default mode would take: the first, within the near-tie band of *method*, of
    the candidates that it lists. Others are tried where *is_worth* says so of the fastest time of
    those, in microseconds. A candidate that writes something else than the first listed
    candidate that runs, by more than *tolerance*, is rejected before it is timed, and one that
    takes less than *floor_us* by more than peaks may be wrong after that.
    """
    screening = Screening([], search.listed[0], device, method)
    written = _Written(search, tolerance)
    calls = search.calls
    while calls:
        runs = [CandidateRun(winner, call) for winner, call in calls.items()]
        screening.runs += runs
        for run in runs:
            screening.attempt(run, "check", written.compare)
        screening.screen(runs)
        _reject_implausible(runs, floor_us)
        times_us = {run.winner: run.time_us if run.is_open else math.inf for run in screening.runs}
        calls = search.more(times_us) if is_worth(min(times_us.values())) else {}
    library = screening.choose_control(search.listed, method.near_tie)
    screening.time_finalists()
    _reject_implausible(screening.runs, floor_us)
    uncompiled = (
        Outcome(winner=winner, rejection=Rejection.COMPILE, said=reason)
        for winner, reason in search.uncompiled.items()
    )
    return [*(run.outcome for run in screening.runs), *uncompiled], library


def _reject_implausible(runs: Sequence[CandidateRun], floor_us: float | None) -> None:
    for run in runs:
        if floor_us is not None and run.is_open:
            run.reject_over_peak(run.time_us, floor_us)


def with_narrow_band(method: Method) -> Method:
    """Return *method* with the near-tie band of candidates that differ in a launch config only."""
    return replace(method, near_tie=min(method.near_tie, NEAR_TIE))


class _Written:
    def __init__(self, search: LiveSearch, tolerance: Mapping[str, float]) -> None:
        self._search, self._tolerance = search, {**NARROW_TOLERANCE, **tolerance}
        self._expected: Sequence[torch.Tensor] | None = None

    def compare(self, run: CandidateRun) -> None:
        outputs: Sequence[torch.Tensor] = self._search.written(run.winner)
        if outputs:
            synchronize(outputs[0].device)
        if self._expected is None:
            self._expected = outputs
            return
        for out, expected in zip(outputs, self._expected, strict=True):
            limit = self._tolerance.get(dtype_name(out.dtype))
            error, rejection, message = judge_like(out, expected, limit)
            run.outcome = replace(run.outcome, error=max(error, run.outcome.error or 0.0))
            if rejection is not None:
                run.reject(rejection, message)
                return
