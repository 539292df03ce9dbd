"""`Screening`: times all candidates for a few rounds, then the fastest until they are stable.

Outputs are checked in `warmup.measuring.trials`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from warmup.core.errors import BuildError
from warmup.core.method import Launch, Method
from warmup.core.rows import Rejection, Winner
from warmup.core.trial import Outcome, TimedCall
from warmup.measuring.clock import Batch, batch_of, run_rounds
from warmup.measuring.enqueue import ENQUEUE_ROUNDS, EnqueueBatch

# Called before a candidate runs, with the name of the stage.
StageCallback = Callable[[Winner, str], None]

SCREENING_ROUNDS: Final = 3  # rounds of all candidates
FINAL_ROUNDS: Final = 12  # rounds of the finalists, repeated up to `_RETRIES` times
_RETRIES: Final = 3
OVER_PEAK: Final = 1.10  # peaks are measured too; a rate above this share cannot be true
# Before what noise may have refused is measured again. Seconds: a passing load is over by then.
PAUSES_S: Final = (0.5, 1.0, 2.0)
_FINAL_SHARE: Final = 1.25  # times the fastest time: slower candidates are no finalists
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
        """True until the candidate is rejected."""
        return self.outcome.rejection is None

    @property
    def time_us(self) -> float:
        """The median of the times so far in microseconds; infinite without any."""
        return self.outcome.time_us or float("inf")

    def reject(self, reason: Rejection, message: str) -> None:
        """Record the rejection; the candidate is not run again."""
        self.outcome = replace(self.outcome, rejection=reason, said=message[:_MAX_MESSAGE])

    def reject_over_peak(self, time_us: float, floor_us: float) -> None:
        """Reject the candidate if *time_us* is less than *floor_us* by more than peaks may err."""
        if time_us * OVER_PEAK < floor_us:
            message = f"{time_us:.2f} us, while the measured peaks allow {floor_us:.2f} us"
            self.reject(Rejection.IMPLAUSIBLE, message)


class Screening:
    """Times the candidates for one key on *device* by *method*; *library* is the control.

    *sets* is the number of operand sets, and *on_stage* is called before a candidate runs. An error
    rejects its candidate, unless *is_lost* says that the device is unusable: then it is raised.
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
    ) -> None:
        self.runs = list(runs)
        self._library, self._device, self._method = library, device, method
        self._sets, self._on_stage, self._is_lost = sets, on_stage, is_lost
        self._repeats: Counter[Winner] = Counter()

    def run(self) -> None:
        """Time all candidates for `SCREENING_ROUNDS`, then the finalists."""
        self.screen(self.runs)
        self.time_finalists()

    def screen(self, runs: Sequence[CandidateRun]) -> None:
        """Time *runs*, which are among ``runs``, for `SCREENING_ROUNDS`."""
        for run in runs:
            if run.is_open:
                self.attempt(run, "prepare", self._prepare)
        self._add_rounds([run for run in runs if run.is_open], SCREENING_ROUNDS)

    def choose_control(self, winners: Sequence[Winner], band: float) -> Winner:
        """Make the fastest of *winners* the control and return it, by the times so far.

        That is the first of those within *band* of the fastest; without any time, the first.
        """
        timed = [run for run in self.runs if run.is_open and run.winner in winners]
        timed.sort(key=lambda run: winners.index(run.winner))
        limit = min((run.time_us for run in timed), default=0.0) * (1 + band)
        near = [run.winner for run in timed if run.time_us <= limit]
        self._library = near[0] if near else winners[0]
        return self._library

    def time_finalists(self) -> None:
        """Time the finalists until their spread is narrow or the retries are used up.

        Between two attempts there is a pause, so that a short disturbance does not spoil both.
        """
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

    @property
    def _counts_host(self) -> bool:
        """Whether the host's time to launch a call may decide: not on a CPU or in CUDA graphs."""
        return self._device.type != "cpu" and self._method.launch is Launch.EAGER

    def time_enqueueing(self) -> None:
        """Take the host's times to enqueue each finalist, where they may decide."""
        runs = self.finalists() if self._counts_host else []
        batches = {
            run.winner: EnqueueBatch(run.call, self._device, run.batch.calls)
            for run in runs
            if run.call is not None and run.batch is not None
        }
        times = run_rounds(
            batches, ENQUEUE_ROUNDS, lambda winner: self._on_stage(winner, "enqueue")
        )
        for run in runs:
            run.outcome = replace(run.outcome, host=times.get(run.winner))

    def finalists(self) -> list[CandidateRun]:
        """Return the candidates near the fastest, fastest first, and the control.

        Where the host's time may decide, the fastest of each template and kernel is among them:
        what launching a candidate takes depends on that, and not on its tile.
        """
        timed = [run for run in self.runs if run.is_open and run.outcome.time_us]
        ranked = sorted(timed, key=lambda run: run.time_us)
        if not ranked:
            return []
        limit = ranked[0].time_us * _FINAL_SHARE
        fastest = [run for run in ranked if run.time_us <= limit][:_FINALISTS]
        control = [run for run in ranked if run.winner == self._library]
        by_uid = {run.winner.uid: run for run in reversed(ranked)} if self._counts_host else {}
        more = [*control, *by_uid.values()]
        return [*{run.winner: run for run in (*fastest, *more)}.values()]

    def attempt(self, run: CandidateRun, stage: str, step: Callable[[CandidateRun], None]) -> None:
        """Call *step* with *run*; an error rejects the candidate.

        Where the control runs out of memory, it is tried again after a pause, `PAUSES_S` often.

        Raises:
            Exception: the device is lost.
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
        """Wait before *run* is measured again, longer each time."""
        time.sleep(PAUSES_S[self._repeats[run.winner]])
        self._repeats[run.winner] += 1

    def _prepare(self, run: CandidateRun) -> None:
        assert run.call is not None
        method = self._method
        run.batch = batch_of(run.call, self._device, method.launch, method.l2, self._sets)

    def _add_rounds(self, runs: Sequence[CandidateRun], rounds: int) -> None:
        """Time *runs* for *rounds* rounds; a failing run is rejected, and the rest start over."""
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
