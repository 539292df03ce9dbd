"""`TrialProcess`: runs trials in a child process, so that a fault or a hang costs one candidate.

The child reports each candidate before it runs it. When the child dies, or reports nothing for too
long, that candidate is rejected and a new child runs the others.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import msgspec

from warmup.core.errors import BuildError
from warmup.core.events import logger
from warmup.core.processes import RECORDING_VARIABLE, Child, ChildError, ChildTimeoutError, Message
from warmup.core.rows import Rejection, Winner
from warmup.core.trial import Outcome, Trial, trial_to_json

WORKERS: Final = "--workers"  # argument of a child that will compile regions
_START_S: Final = 300.0
_LIMIT_S: Final = 60.0
_OPERANDS_STAGE: Final = "operands"  # before the first candidate
_MOST_DEATHS: Final = 16  # of one trial
_MOST_RESTARTS: Final = 1  # of one trial, while no candidate was running
_MOST_CONTROL_DEATHS: Final = 1  # of one trial; a busy machine can end or delay a process
_ROOT: Final = str(Path(__file__).resolve().parents[2])


class TrialNotRunError(Exception):
    """A trial could not be run at all; the message says why."""


class _ChildEndedError(Exception):
    def __init__(self, winner: Winner | None, reason: Rejection, message: str) -> None:
        super().__init__(message)
        self.winner, self.reason = winner, reason  # the candidate that was running


@dataclass
class TrialProcess:
    """Runs trials in a child process, one at a time; the child starts with the first trial.

    *command* starts the child, which speaks the protocol of `warmup.tuning.worker`. A candidate has
    *limit_s* seconds for each stage. The child's output goes to *log*, by default a temporary file.
    """

    command: Sequence[str]
    limit_s: float = _LIMIT_S
    log: IO[bytes] | None = None
    _child: Child | None = None
    _is_ready: bool = False
    _owner: int = field(default_factory=os.getpid)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self._leave_to_parent()
        if self._child is not None:
            return
        path = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "TORCH_WARM_POOL": "0",  # compile workers start with `WORKERS` only, not on import
            "PYTHONPATH": os.pathsep.join(path),
            RECORDING_VARIABLE: "",  # what it compiles is no question of a program
        }
        with tempfile.TemporaryFile() as own:  # the child has a descriptor of its own
            self._child = Child(self.command, environment, self.log or own)
        self._is_ready = False

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def run(self, trial: Trial) -> tuple[Outcome, ...]:
        """Return the outcomes of *trial*; trials of other threads wait.

        Raises TrialNotRunError where no candidate could be run, for example for lack of memory, and
        BuildError where the child does not start, or dies before it runs a candidate.
        """
        rejected: dict[Winner, Outcome] = {}
        restarts = control_deaths = 0
        with self._lock:
            for _ in range(_MOST_DEATHS):
                self.start()
                try:
                    return self._run(trial, rejected)
                except _ChildEndedError as dead:
                    self.close()
                    if dead.winner == trial.library and control_deaths < _MOST_CONTROL_DEATHS:
                        control_deaths += 1
                    elif dead.winner is not None:
                        rejected[dead.winner] = Outcome(
                            winner=dead.winner, rejection=dead.reason, said=str(dead)
                        )
                    elif self._is_ready and restarts < _MOST_RESTARTS:
                        restarts += 1  # between two trials, or while the operands were made
                    else:
                        raise BuildError(
                            f"the process that measures candidates {dead}", "run `warmup doctor`"
                        ) from None
        raise TrialNotRunError(f"{_MOST_DEATHS} candidates took the process down")

    def _leave_to_parent(self) -> None:
        """Forget the child in a process that was forked since: it is that of the parent."""
        if self._owner != os.getpid():
            self._child, self._owner = None, os.getpid()

    def close(self) -> None:
        self._leave_to_parent()
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _run(self, trial: Trial, rejected: dict[Winner, Outcome]) -> tuple[Outcome, ...]:
        assert self._child is not None
        if not self._is_ready:
            self._receive(None, _START_S)
            self._is_ready = True
        numbers = [i for i, each in enumerate(trial.candidates) if each.winner in rejected]
        self._child.send({"trial": trial_to_json(trial), "skip": numbers})
        current: Winner | None = None
        stages: dict[str, float] = {}
        stage, since = _OPERANDS_STAGE, time.monotonic()
        while True:
            # Before the first candidate the child makes the operands and the reference.
            message = self._receive(current, self.limit_s if current is not None else _START_S)
            now = time.monotonic()
            stages[stage] = stages.get(stage, 0.0) + now - since
            stage, since = message.get("stage", stage), now
            if "at" in message:
                current = trial.candidates[message["at"]].winner
            elif "lost" in message:
                raise _ChildEndedError(current, Rejection(message["reason"]), message["lost"])
            elif "failed" in message:
                raise TrialNotRunError(message["failed"])
            else:
                spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items())
                logger.debug("%d candidates: %s: %s", len(trial.candidates), spent, trial.key)
                outcomes = msgspec.convert(message["outcomes"], tuple[Outcome, ...])
                return tuple(rejected.get(one.winner, one) for one in outcomes)

    def _receive(self, current: Winner | None, limit_s: float) -> Message:
        assert self._child is not None
        try:
            return self._child.receive(limit_s)
        except ChildTimeoutError as silent:
            raise _ChildEndedError(current, Rejection.TIMED_OUT, str(silent)) from None
        except ChildError as lost:
            raise _ChildEndedError(current, Rejection.CRASHED, str(lost)) from None


def own_command(*, workers: bool = False) -> list[str]:
    """Return the command of `warmup.tuning.worker`, with compile *workers* or without."""
    # -P: a file in the working folder must not shadow a module.
    return [sys.executable, "-P", "-m", "warmup.tuning.worker", *([WORKERS] if workers else [])]
