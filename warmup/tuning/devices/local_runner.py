"""`LocalRunner`: the `Runner` that starts a worker process on this host, and watches it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from warmup.core.child_process import Child, ChildError, ChildTimeoutError, Message
from warmup.tuning.devices.messages import (
    FinishedProblem,
    ProblemTask,
    WorkerOrder,
    finished_from_json,
    order_to_json,
    task_to_json,
)
from warmup.tuning.devices.runner import (
    ReadyWorker,
    RunnerGoneError,
    RunnerLostError,
    ready_from_json,
)

PROBLEM_S: Final = 1800.0
_PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[3])
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "warmup.tuning.devices.worker")

# Called when a worker waits for a quiet machine: its name, the reason, the seconds left to wait.
OnWorkerWait = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a worker has: to start, to give a sign of life, and for one problem."""

    start_s: float = 300.0
    silence_s: float = 120.0
    problem_s: float = PROBLEM_S


@dataclass(kw_only=True)
class LocalRunner:
    """A worker process that does *order*, with *environment* over that of this process.

    It is killed where it takes longer than its *patience*. What it prints goes to a file, and the
    last line becomes part of the error when it dies.
    """

    name: str
    device: str
    order: WorkerOrder
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    command: Sequence[str] = WORKER_COMMAND
    on_wait: OnWorkerWait = lambda _name, _reason, _seconds: None
    _child: Child | None = None
    _is_stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> ReadyWorker:
        """Start the process, and return what it says when it is ready.

        Raises:
            RunnerGoneError: it did not start, or `stop` came first.
        """
        folder = tempfile.mkdtemp(prefix="worker-", dir=self.order.folder)
        try:
            with tempfile.TemporaryFile() as log:
                child = Child(self.command, {**worker_variables(), **self.environment}, log)
        except OSError as error:
            raise RunnerGoneError(f"cannot be started: {error}") from None
        with self._lock:
            self._child = child
            if self._is_stopped:
                child.end()
        try:
            with self._sending(child):
                child.send(order_to_json(replace(self.order, folder=folder)))
            ready = self._await("ready", self.patience.start_s)["ready"]
        except RunnerLostError as lost:
            raise RunnerGoneError(str(lost)) from None
        return ready_from_json(ready)

    def run(self, task: ProblemTask) -> FinishedProblem:
        """Return what came of *task* in the process.

        Raises:
            RunnerLostError: the process died, gave no sign of life, took too long or ran out of
                memory. It has ended.
        """
        child = self._child
        if child is None:
            raise RunnerLostError("has not started")
        with self._sending(child):
            child.send(task_to_json(task))
        return finished_from_json(self._await("finished", self.patience.problem_s)["finished"])

    def stop(self) -> None:
        """End the process for good; a call that waits for it raises."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.end()

    def close(self) -> None:
        """End the process and close the pipes to it."""
        self.stop()
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._child = None

    def _await(self, wanted: str, limit_s: float) -> Message:
        """Return the process's next message with *wanted*.

        Raises:
            RunnerLostError: no such message came, and the process has ended.
        """
        child, deadline = self._child, time.monotonic() + limit_s
        assert child is not None
        reason = f"took longer than {limit_s:g} s"
        try:
            while (left := deadline - time.monotonic()) > 0:
                # A process that imports torch gives no sign of life before it can.
                silence_s = limit_s if wanted == "ready" else self.patience.silence_s
                message = child.receive(min(left, silence_s))
                if wanted in message:
                    return message
                if (ending := message.get("lost") or message.get("gone")) is not None:
                    reason = str(ending)
                    break
                if "waiting" in message:
                    self.on_wait(self.name, message["waiting"], message["seconds"])
        except ChildTimeoutError as silent:
            reason = reason if time.monotonic() >= deadline else str(silent)
        except ChildError as ended:
            reason = str(ended)
        with self._lock:
            child.kill()
            self._child = None
        raise RunnerLostError(reason)

    @contextlib.contextmanager
    def _sending(self, child: Child) -> Iterator[None]:
        """End *child* where it does not take what is sent: a pipe that nobody reads fills up."""
        timer = threading.Timer(self.patience.silence_s, child.end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def worker_variables() -> dict[str, str]:
    """Return the environment of a process that imports this package, and serves from no table."""
    path = [_PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")}
    return {**plain, "PYTHONPATH": os.pathsep.join(path)}
