"""A child process that runs trials: what faults, hangs or eats memory costs one candidate.

The child says which candidate it is about to run. When it dies, or says nothing for too long, that
candidate is rejected, a new child starts, and the others go on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from warmup.core.child_process import Child, ChildError, ChildTimeoutError, Message
from warmup.core.errors import BuildError
from warmup.core.events import logger
from warmup.core.rows import Rejection, Winner
from warmup.core.samples import Samples
from warmup.core.trial import Outcome, Trial, trial_to_json

WORKERS: Final = "--workers"  # an argument of the child: it will compile
_START_S: Final = 300.0
_LIMIT_S: Final = 60.0
_MAKING: Final = "operands"  # the stage before the first candidate
_MOST_DEATHS: Final = 16  # of one trial
_MOST_RESTARTS: Final = 1  # of one trial, when no candidate can be blamed
_ROOT: Final = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcomes of a trial, in the order of its candidates, and the SM clock seen if any."""

    outcomes: tuple[Outcome, ...]
    clock_mhz: int | None = None


class TrialNotRunError(Exception):
    """A trial could not be run at all: why."""


@dataclass
class TrialProcess:
    """Runs trials in a child process, one at a time; the child starts with the first.

    A candidate has *limit_s* seconds for each of its steps. What the child prints goes to *log*, a
    temporary file by default, and its last line is told when it dies. *command* is the program,
    which speaks the protocol of `warmup.tuning.worker`.
    """

    command: Sequence[str]
    limit_s: float = _LIMIT_S
    log: IO[bytes] | None = None
    _child: _Measurer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the child, so that it imports what it needs while other work goes on."""
        if self._child is None:
            self._child = _Measurer(self.command, self.log)

    @property
    def pid(self) -> int | None:
        """The process ID of the child, None when there is none."""
        return None if self._child is None else self._child.pid

    def run(self, trial: Trial) -> TrialResult:
        """Return what came of *trial*; another thread's trial waits.

        Raises:
            TrialNotRunError: no candidate could be run, for want of memory for example.
            BuildError: the child does not start, or dies before any candidate is run.
        """
        with self._lock:
            return self._run(trial)

    def _run(self, trial: Trial) -> TrialResult:
        rejected: list[Outcome] = []
        restarts = 0
        for _ in range(_MOST_DEATHS):
            self.start()
            assert self._child is not None
            try:
                return self._child.run(trial, rejected, self.limit_s)
            except _DeadError as dead:
                was_ready = self._child.is_ready
                self.close()
                if dead.winner is not None:
                    rejected.append(
                        Outcome(winner=dead.winner, rejection=dead.reason, said=str(dead))
                    )
                elif was_ready and restarts < _MOST_RESTARTS:
                    restarts += 1  # it died between two trials, or making the operands
                else:
                    raise BuildError(
                        f"the process that measures candidates {dead}", "run `warmup doctor`"
                    ) from None
        raise TrialNotRunError(f"{_MOST_DEATHS} candidates took the process down")

    def close(self) -> None:
        """End the child, at once; the next trial starts another one."""
        if self._child is not None:
            self._child.close()
            self._child = None


class _DeadError(Exception):
    """The child has ended or must be ended: what it was running, and why."""

    def __init__(self, winner: Winner | None, reason: Rejection, said: str) -> None:
        super().__init__(said)
        self.winner = winner
        self.reason = reason


class _Measurer:
    """One child process that measures."""

    def __init__(self, command: Sequence[str], log: IO[bytes] | None) -> None:
        path = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "TORCH_WARM_POOL": "0",  # workers start if it is told so, and not with torch
            "PYTHONPATH": os.pathsep.join(path),
        }
        with contextlib.nullcontext(log) if log is not None else tempfile.TemporaryFile() as file:
            self._child = Child(command, environment, file)
        self.is_ready = False

    @property
    def pid(self) -> int:
        return self._child.pid

    def run(self, trial: Trial, rejected: Sequence[Outcome], limit_s: float) -> TrialResult:
        if not self.is_ready:
            self._receive(None, _START_S)
            self.is_ready = True
        skipped = {outcome.winner: outcome for outcome in rejected}
        numbers = [i for i, one in enumerate(trial.candidates) if one.winner in skipped]
        self._child.send({"trial": trial_to_json(trial), "skip": numbers})
        current: Winner | None = None
        stages: dict[str, float] = {}
        stage, since = _MAKING, time.monotonic()
        while True:
            # Making the operands and the reference takes its time before the first candidate.
            message = self._receive(current, limit_s if current is not None else _START_S)
            now = time.monotonic()
            stages[stage] = stages.get(stage, 0.0) + now - since
            stage, since = message.get("stage", stage), now
            if "at" in message:
                current = trial.candidates[message["at"]].winner
            elif "lost" in message:
                reason = Rejection(message["reason"])
                raise _DeadError(current, reason, str(message["lost"]))
            elif "failed" in message:
                raise TrialNotRunError(str(message["failed"]))
            else:
                spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items())
                logger.debug("%d candidates: %s: %s", len(trial.candidates), spent, trial.key)
                return _read_result(trial, message, skipped)

    def close(self) -> None:
        self._child.kill()

    def _receive(self, current: Winner | None, limit_s: float) -> Message:
        try:
            return self._child.receive(limit_s)
        except ChildTimeoutError as silent:
            raise _DeadError(current, Rejection.TIMED_OUT, str(silent)) from None
        except ChildError as lost:
            raise _DeadError(current, Rejection.CRASHED, str(lost)) from None


def _read_result(
    trial: Trial, message: Mapping[str, Any], skipped: Mapping[Winner, Outcome]
) -> TrialResult:
    outcomes = [
        skipped.get(candidate.winner) or outcome_from_json(candidate.winner, found)
        for candidate, found in zip(trial.candidates, message["outcomes"], strict=True)
    ]
    return TrialResult(tuple(outcomes), message["clock_mhz"])


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return *outcome* without its winner as JSON values."""
    return {
        "times_us": None if outcome.samples is None else list(outcome.samples.times_us),
        "error": outcome.error,
        "rejection": outcome.rejection,
        "said": outcome.said,
        "is_final": outcome.is_final,
    }


def outcome_from_json(winner: Winner, found: Mapping[str, Any]) -> Outcome:
    """Return the outcome that `outcome_to_json` wrote about *winner*."""
    times = found["times_us"]
    return Outcome(
        winner=winner,
        samples=None if times is None else Samples(tuple(times)),
        error=found["error"],
        rejection=None if found["rejection"] is None else Rejection(found["rejection"]),
        said=found["said"],
        is_final=found["is_final"],
    )


def own_command(*, workers: bool = False) -> list[str]:
    """Return the command that starts warmup's own child program, with compile *workers* or not."""
    # Without the working folder on the path: a file there must not stand in for a module.
    return [sys.executable, "-P", "-m", "warmup.tuning.worker", *([WORKERS] if workers else [])]
