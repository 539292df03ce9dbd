"""A child process that runs trials: what faults, hangs or eats memory costs one candidate.

The child says which candidate it is about to run. When it dies, or says nothing for too long, that
candidate is rejected, a new child starts, and the others go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from warmup.choice import Rejection, Winner
from warmup.errors import BuildError
from warmup.samples import Samples
from warmup.trial import Outcome, Trial, trial_to_json

_START_S: Final = 300.0
_LIMIT_S: Final = 60.0
_MOST_DEATHS: Final = 16  # of one trial
_MOST_RESTARTS: Final = 1  # of one trial, when no candidate can be blamed
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_SAID: Final = 200
_WATCH_S: Final = 1.0


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
    which speaks the protocol of `warmup.trialing`.
    """

    command: Sequence[str]
    limit_s: float = _LIMIT_S
    log: IO[bytes] | None = None
    _child: _Child | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the child, so that it imports what it needs while other work goes on."""
        if self._child is None:
            self._child = _Child(self.command, self.log)

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
            except _LostError as lost:
                was_ready = self._child.is_ready
                self.close()
                if lost.winner is not None:
                    rejected.append(
                        Outcome(winner=lost.winner, rejection=lost.reason, said=lost.said)
                    )
                elif was_ready and restarts < _MOST_RESTARTS:
                    restarts += 1  # it died between two trials, or making the operands
                else:
                    raise BuildError(
                        f"the process that measures candidates {lost.said}", "run `warmup doctor`"
                    ) from None
        raise TrialNotRunError(f"{_MOST_DEATHS} candidates took the process down")

    def close(self) -> None:
        """End the child, at once; the next trial starts another one."""
        if self._child is not None:
            self._child.kill()
            self._child = None


class _LostError(Exception):
    """The child is gone, or was ended because it hung."""

    def __init__(self, winner: Winner | None, reason: Rejection, said: str) -> None:
        super().__init__(said)
        self.winner = winner
        self.reason = reason
        self.said = said


class _Child:
    """One child process."""

    def __init__(self, command: Sequence[str], log: IO[bytes] | None) -> None:
        self._own_log: IO[bytes] | None = None
        if log is None:
            log = self._own_log = tempfile.TemporaryFile()  # noqa: SIM115  as long as the child
        self._log = log
        ours, theirs = os.pipe()
        path = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "TORCH_WARM_POOL": "0",  # it compiles little, and needs no workers
            "PYTHONPATH": os.pathsep.join(path),
        }
        try:
            self._process = subprocess.Popen(  # noqa: S603  the caller's own program
                [*command, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(theirs,),
                env=environment,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        finally:
            os.close(theirs)
        self._answers = os.fdopen(ours, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._buffer = b""
        self.is_ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, trial: Trial, rejected: Sequence[Outcome], limit_s: float) -> TrialResult:
        if not self.is_ready:
            self._receive(None, _START_S)
            self.is_ready = True
        skipped = {outcome.winner: outcome for outcome in rejected}
        numbers = [i for i, one in enumerate(trial.candidates) if one.winner in skipped]
        self._send({"trial": trial_to_json(trial), "skip": numbers})
        current: Winner | None = None
        while True:
            # Making the operands and the reference takes its time before the first candidate.
            message = self._receive(current, limit_s if current is not None else _START_S)
            if "at" in message:
                current = trial.candidates[message["at"]].winner
            elif "lost" in message:
                reason = Rejection(message["reason"])
                raise _LostError(current, reason, str(message["lost"]))
            elif "failed" in message:
                raise TrialNotRunError(str(message["failed"]))
            else:
                return _read_result(trial, message, skipped)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        self._answers.close()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        if self._own_log is not None:
            self._own_log.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise _LostError(None, Rejection.CRASHED, self._how_it_ended()) from None

    def _receive(self, current: Winner | None, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                said = f"said nothing for {limit_s:.0f} s"
                raise _LostError(current, Rejection.TIMED_OUT, said)
            found = os.read(self._answers.fileno(), 1 << 16)
            if not found:
                raise _LostError(current, Rejection.CRASHED, self._how_it_ended())
            self._buffer += found
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        last = self._last_words()
        return f"{how} ({last})" if last else how

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - 4096))
            lines = self._log.read().decode(errors="replace").strip().splitlines()
            self._log.seek(0, os.SEEK_END)
            return lines[-1].strip()[:_SAID] if lines else ""
        return ""


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


def own_command() -> list[str]:
    """Return the command that starts warmup's own child program."""
    # Without the working folder on the path: a file there must not stand in for a module.
    return [sys.executable, "-P", "-m", "warmup.trialing"]


def end_with_parent() -> None:
    """End this process soon after the one that started it is gone, whatever a candidate is doing.

    For child programs, when they begin.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
