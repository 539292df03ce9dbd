"""`TrialProcess`: runs trials in a child process, so that a fault or a hang costs one candidate.

The child reports each candidate before it runs it. When the child dies, or reports nothing for too
long, that candidate is rejected and a new child runs the others.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

import msgspec

from warmup.core.errors import BuildError
from warmup.core.events import logger
from warmup.core.processes import Child, ChildError, ChildTimeoutError, Message
from warmup.core.rows import Rejection, Winner
from warmup.core.trial import Outcome, Trial, trial_to_json

WORKERS: Final = "--workers"  # argument of a child that will compile regions
FOLDER: Final = "TRIALS_FOLDER"  # variable of a child: where it keeps what it compiles
_START_S: Final = 300.0
_LIMIT_S: Final = 60.0
_OPERANDS_STAGE: Final = "operands"  # before the first candidate
_MOST_DEATHS: Final = 16  # of one trial
_MOST_RESTARTS: Final = 1  # of one trial, while no candidate was running
_MOST_CONTROL_DEATHS: Final = 1  # of one trial; a busy machine can end or delay a process


class TrialNotRunError(Exception):
    """A trial could not be run at all; the message says why."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A trial that was not run yet, with the outcomes of candidates that took a child down."""

    trial: Trial
    number: int
    rejected: dict[Winner, Outcome] = field(default_factory=dict)
    control_deaths: int = 0
    is_sent: bool = False


_Running = tuple[_Waiting, Winner] | None  # what the child compiles or runs


class _ChildEndedError(Exception):
    def __init__(self, running: _Running, reason: Rejection, message: str) -> None:
        super().__init__(message)
        self.running, self.reason = running, reason


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
    _waiting: list[_Waiting] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _folder: str = ""
    _owner: int = field(default_factory=os.getpid)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self._leave_to_parent()
        if self._child is not None:
            return
        # Compile workers start with `WORKERS` only, not on import.
        self._folder = tempfile.mkdtemp(prefix="warmup-trials-")
        changes = {"TORCH_WARM_POOL": "0", FOLDER: self._folder}
        self._child = Child(self.command, changes, self.log)
        for one in self._waiting:
            one.is_sent = False

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def coming(self) -> tuple[Trial, ...]:
        return tuple(one.trial for one in self._waiting)

    def prepare(self, trials: Iterable[Trial]) -> None:
        """Let the child compile *trials*, in this order, while it is idle and before it runs them.

        Trials of an earlier call that are not among them are forgotten.
        """
        with self._lock:
            self._leave_to_parent()
            self._waiting = [self._waiting_for(trial) for trial in trials]
            if self._is_ready:
                self._send_new()

    def run(self, trial: Trial) -> tuple[Outcome, ...]:
        """Return the outcomes of *trial*; trials of other threads wait.

        Raises TrialNotRunError where no candidate could be run, for example for lack of memory, and
        BuildError where the child does not start, or dies before it runs a candidate.
        """
        with self._lock:
            waiting = self._waiting_for(trial)
            others = [one for one in self._waiting if one is not waiting]
            self._waiting = [waiting, *others]
            try:
                return self._run_until_done(waiting)
            finally:
                self._waiting = others

    def _waiting_for(self, trial: Trial) -> _Waiting:
        known = (one for one in self._waiting if one.trial == trial)
        return next(known, None) or _Waiting(trial, next(self._numbers))

    def _run_until_done(self, waiting: _Waiting) -> tuple[Outcome, ...]:
        restarts = 0
        for _ in range(_MOST_DEATHS):
            self.start()
            try:
                return self._run(waiting)
            except _ChildEndedError as dead:
                was_ready = self._is_ready
                self.close()
                if dead.running is not None:
                    _blame(dead.running, dead)
                elif was_ready and restarts < _MOST_RESTARTS:
                    restarts += 1  # between two trials, or while the operands were made
                else:
                    raise BuildError(
                        f"the process that measures candidates {dead}", "run `warmup doctor`"
                    ) from None
        raise TrialNotRunError(f"{_MOST_DEATHS} candidates took the process down")

    def _leave_to_parent(self) -> None:
        """Forget the child in a process that was forked since: it is that of the parent."""
        if self._owner != os.getpid():
            self._child, self._owner, self._is_ready = None, os.getpid(), False

    def close(self) -> None:
        self._leave_to_parent()
        if self._child is not None:
            self._child.kill()
            self._child, self._is_ready = None, False
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, waiting: _Waiting) -> tuple[Outcome, ...]:
        if not self._is_ready:
            self._receive(None, _START_S)
            self._is_ready = True
        self._send_new()
        every = {one.number: one for one in self._waiting}
        self._send("run", waiting, waiting=[*every])
        running: _Running = None
        stages: dict[str, float] = {}
        stage, since = _OPERANDS_STAGE, time.monotonic()
        while True:
            # Before the first candidate the child makes the operands and the reference.
            message = self._receive(running, _START_S if running is None else self.limit_s)
            now = time.monotonic()
            stages[stage] = stages.get(stage, 0.0) + now - since
            stage, since = message.get("stage", stage), now
            if "stage" in message:
                of, at, running = every.get(message["of"]), message["at"], None
                if of is not None and at is not None:  # the trial may be forgotten meanwhile
                    running = of, of.trial.candidates[at].winner
            elif "lost" in message:
                raise _ChildEndedError(running, Rejection(message["reason"]), message["lost"])
            elif "failed" in message:
                raise TrialNotRunError(message["failed"])
            else:
                spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items())
                outcomes = msgspec.convert(message["outcomes"], tuple[Outcome, ...])
                logger.debug("%d candidates: %s: %s", len(outcomes), spent, waiting.trial.key)
                return outcomes

    def _send_new(self) -> None:
        for one in self._waiting:
            if not one.is_sent:
                self._send("prepare", one, trial=trial_to_json(one.trial))
                one.is_sent = True

    def _send(self, what: str, one: _Waiting, **more: Any) -> None:
        assert self._child is not None
        rejected = msgspec.to_builtins([*one.rejected.values()])
        self._child.send({what: one.number, "rejected": rejected, **more})

    def _receive(self, running: _Running, limit_s: float) -> Message:
        assert self._child is not None
        try:
            return self._child.receive(limit_s)
        except ChildTimeoutError as silent:
            raise _ChildEndedError(running, Rejection.TIMED_OUT, str(silent)) from None
        except ChildError as lost:
            raise _ChildEndedError(running, Rejection.CRASHED, str(lost)) from None


def _blame(running: tuple[_Waiting, Winner], dead: _ChildEndedError) -> None:
    """Reject the candidate that took the child down; the control may do so once."""
    waiting, winner = running
    if winner == waiting.trial.library and waiting.control_deaths < _MOST_CONTROL_DEATHS:
        waiting.control_deaths += 1
    else:
        rejected = Outcome(winner=winner, rejection=dead.reason, said=str(dead))
        waiting.rejected[winner] = rejected


def own_command(*, workers: bool = False) -> list[str]:
    """Return the command of `warmup.tuning.worker`, with compile *workers* or without."""
    # -P: a file in the working folder must not shadow a module.
    return [sys.executable, "-P", "-m", "warmup.tuning.worker", *([WORKERS] if workers else [])]
