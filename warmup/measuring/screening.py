"""Timing candidates against each other: all a few times, then the fastest until it is settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from warmup.core.errors import BuildError
from warmup.core.method import Method
from warmup.core.rows import Rejection, Winner
from warmup.core.trial import Outcome, TimedCall
from warmup.measuring.clock import Batch, batch_of
from warmup.measuring.rounds import run_rounds

At = Callable[[Winner, str], None]  # told which candidate is run next, and at which stage

SCREENING: Final = 3  # rounds of all candidates
FINAL_ROUNDS: Final = 12  # rounds of the finalists, each time
_RETRIES: Final = 3
_FINAL_SHARE: Final = 1.25  # of the fastest time
_FINALISTS: Final = 8
_SAID: Final = 300
_COMPILING: Final = ("Compil", "Inductor", "Lowering")  # in the names of what compilers raise


@dataclass
class Contender:
    """One candidate while it is checked and timed."""

    winner: Winner
    call: TimedCall | None = None
    batch: Batch | None = None
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = Outcome(winner=self.winner)

    @property
    def is_open(self) -> bool:
        """True until it is rejected."""
        return self.outcome.rejection is None

    @property
    def time_us(self) -> float:
        """The median time so far; infinite without one."""
        return self.outcome.time_us or float("inf")

    def reject(self, reason: Rejection, said: str) -> None:
        """Take it out of the contest."""
        self.outcome = replace(self.outcome, rejection=reason, said=said[:_SAID])


class Contest:
    """The contenders for one key on *device*, timed by *method*, with *library* as the control.

    *at* is told before a contender runs. An error after which the device cannot be used, as
    *is_lost* tells, is raised; any other one rejects the contender.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        library: Winner,
        device: torch.device,
        method: Method,
        *,
        sets: int = 1,
        at: At = lambda _winner, _stage: None,
        is_lost: Callable[[BaseException], bool] = lambda _error: False,
    ) -> None:
        self.contenders = contenders
        self._library, self._device, self._method = library, device, method
        self._sets, self._at, self._is_lost = sets, at, is_lost

    def run(self) -> None:
        """Time all a few times, then settle who is fastest."""
        for contender in self.contenders:
            if contender.is_open:
                self.attempt(contender, "prepare", self._prepare)
        self._add_rounds([one for one in self.contenders if one.is_open], SCREENING)
        self.settle()

    def settle(self) -> None:
        """Time the finalists again, until their spread is narrow or the retries are used up."""
        for _ in range(_RETRIES):
            self._add_rounds(self.finalists(), FINAL_ROUNDS)
            if all(map(self._is_settled, self.finalists())):
                return

    def finalists(self) -> list[Contender]:
        """Return those near the fastest so far, fastest first, and the control."""
        timed = [one for one in self.contenders if one.is_open and one.outcome.time_us]
        ranked = sorted(timed, key=lambda one: one.time_us)
        if not ranked:
            return []
        limit = ranked[0].time_us * _FINAL_SHARE
        chosen = [one for one in ranked if one.time_us <= limit][:_FINALISTS]
        control = [one for one in ranked if one.winner == self._library]
        return [*chosen, *(one for one in control if one not in chosen)]

    def attempt(self, contender: Contender, stage: str, work: Callable[[Contender], None]) -> None:
        """Do *work* on *contender*; what it raises rejects the contender.

        Raises:
            Exception: the device is lost.
        """
        self._at(contender.winner, stage)
        try:
            work(contender)
        except Exception as error:  # noqa: BLE001  a candidate may raise anything
            self._reject(contender, error)

    def _prepare(self, contender: Contender) -> None:
        assert contender.call is not None
        method = self._method
        contender.batch = batch_of(
            contender.call, self._device, method.launch, method.l2, self._sets
        )

    def _add_rounds(self, contenders: Sequence[Contender], rounds: int) -> None:
        """Add *rounds* times to each; one that fails now is out, and the rest start over."""
        waiting = list(contenders)
        while waiting:
            batches = {one.winner: one.batch for one in waiting if one.batch is not None}
            running: list[Winner] = []

            def note(winner: Winner, into: list[Winner] = running) -> None:
                into.append(winner)
                self._at(winner, "time")

            try:
                found = run_rounds(batches, rounds, note)
            except Exception as error:  # noqa: BLE001  as above
                failed = next(one for one in waiting if one.winner == running[-1])
                self._reject(failed, error)
                waiting.remove(failed)
                continue
            for one in waiting:
                before, new = one.outcome.samples, found[one.winner]
                # Screening only ranks: its few times meet a device that was idle before.
                keeps = before is not None and one.outcome.is_final
                samples = before + new if before is not None and keeps else new
                one.outcome = replace(one.outcome, samples=samples, is_final=rounds == FINAL_ROUNDS)
            return

    def _is_settled(self, contender: Contender) -> bool:
        outcome = contender.outcome
        return (
            outcome.is_final
            and outcome.samples is not None
            and outcome.samples.spread <= self._method.max_spread
        )

    def _reject(self, contender: Contender, error: Exception) -> None:
        if self._is_lost(error):
            raise error
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        contender.reject(reason_for(error), said)


def hold_contest(
    calls: Mapping[Winner, TimedCall], library: Winner, device: torch.device, method: Method
) -> list[Outcome]:
    """Return what came of timing *calls* against each other in this process, in order."""
    contenders = [Contender(winner, call) for winner, call in calls.items()]
    Contest(contenders, library, device, method).run()
    return [contender.outcome for contender in contenders]


def reason_for(error: BaseException) -> Rejection:
    """Return the rejection that *error*, raised by one candidate, stands for."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Rejection.OUT_OF_MEMORY
    name, text = type(error).__name__, str(error).lower()
    # Triton's OutOfResources, wrapped by inductor or not; too many threads or shared memory.
    if "OutOfResources" in name or "out of resource" in text or "invalid argument" in text:
        return Rejection.LAUNCH
    is_compiling = isinstance(error, BuildError) or any(word in name for word in _COMPILING)
    return Rejection.COMPILE if is_compiling else Rejection.CRASHED
