"""The devices of this host, and `LocalRunner`, which starts and watches a worker process on one."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from warmup.core.child_process import Child, ChildError, ChildTimeoutError
from warmup.core.errors import SettingsError
from warmup.tuning.devices.messages import (
    DeviceMessage,
    FinishedProblem,
    ProblemTask,
    ReadyWorker,
    WorkerOrder,
    from_json,
    to_json,
)
from warmup.tuning.report import Observer

ALL: Final = "all"
# Workers of a GPU: one times while the others compile. Of two, none timed for 40 % of a build on
# two H100s with 32 cores (docs/benchmarks/devices.py): the problems take from 2 to 25 s.
GPU_LANES: Final = 3
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
PROBLEM_S: Final = 1800.0
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "warmup.tuning.devices.worker")
_DEVICE_NAME: Final = re.compile(r"cpu|cuda:[0-9]{1,3}")
_PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[3])
_THREADS_VARIABLE: Final = "TORCHINDUCTOR_COMPILE_THREADS"
_Answer = TypeVar("_Answer", bound=DeviceMessage)


class RunnerLostError(Exception):
    """The worker died, hung or ran out of memory during a problem; the text says which."""


class RunnerGoneError(Exception):
    """The worker did not start; the text says why. No problem is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """A device of this host: its ``name`` here, and how a worker of it is started.

    The worker calls the device ``inside``, has the variables ``environment``, and is one of
    ``lanes`` workers.
    """

    name: str
    inside: str
    lanes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


def parse_devices(text: str) -> tuple[DeviceSlot, ...]:
    """Return the devices that *text* names, such as ``cuda:0,cuda:1``, or all GPUs for ``all``.

    ``cpu`` may be named several times: that many processes then take turns on it.

    Raises:
        SettingsError: *text* has another form, or a GPU is not here or named twice.
    """
    names = [name.strip() for name in text.split(",")]
    if names == [ALL]:
        names = [f"cuda:{index}" for index in range(_gpu_count())]
        if not names:
            raise SettingsError("--devices all: there is no GPU here", "name devices, or leave it")
    for name in names:
        if not _DEVICE_NAME.fullmatch(name):
            raise SettingsError(
                f"--devices {text!r}: {name!r} is not a device",
                "use all, or names such as cuda:0,cuda:1",
            )
        if name != "cpu" and names.count(name) > 1:
            raise SettingsError(f"--devices {text!r} has {name} twice", "name each GPU once")
        if name != "cpu" and int(name.partition(":")[2]) >= _gpu_count():
            raise SettingsError(
                f"--devices {text!r}: there are {_gpu_count()} GPUs here, and {name} is not one",
                "name GPUs that exist, or use all",
            )
    cpu = DeviceSlot(name="cpu", inside="cpu", lanes=names.count("cpu"))
    return tuple(cpu if name == "cpu" else _gpu(name) for name in dict.fromkeys(names))


def _gpu(name: str) -> DeviceSlot:
    """Return the slot of a GPU: its workers see no other one, so that nothing lands there."""
    index = int(name.partition(":")[2])
    visible = os.environ.get(VISIBLE)
    shown = visible.split(",")[index].strip() if visible else str(index)
    return DeviceSlot(name=name, inside="cuda:0", lanes=GPU_LANES, environment={VISIBLE: shown})


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a worker has: to start, to give a sign of life, and for one problem."""

    start_s: float = 300.0
    silence_s: float = 120.0
    problem_s: float = PROBLEM_S


@dataclass(kw_only=True)
class LocalRunner:
    """A worker process that does ``order``, with ``environment`` over that of this process.

    It tunes one problem at a time, and is killed where it takes longer than its ``patience``. What
    it prints goes to a file, and the last line becomes part of the error when it dies. ``name`` and
    ``device`` are for people; several workers may share a device. ``on_wait`` is called when the
    worker waits for a quiet machine, with the reason and the seconds left to wait.
    """

    name: str
    device: str
    order: WorkerOrder
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    command: Sequence[str] = WORKER_COMMAND
    on_wait: Callable[[str, float], None] = lambda _reason, _seconds: None
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
                child = Child(self.command, {**_worker_variables(), **self.environment}, log)
        except OSError as error:
            raise RunnerGoneError(f"cannot be started: {error}") from None
        with self._lock:
            self._child = child
            if self._is_stopped:
                child.end()
        try:
            with self._sending(child):
                child.send(to_json(replace(self.order, folder=folder)))
            # A process that imports torch gives no sign of life before it can.
            start_s = self.patience.start_s
            return self._await("ready", ReadyWorker, limit_s=start_s, silence_s=start_s)
        except RunnerLostError as lost:
            raise RunnerGoneError(str(lost)) from None

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
            child.send(to_json(task))
        limits = self.patience
        return self._await(
            "finished", FinishedProblem, limit_s=limits.problem_s, silence_s=limits.silence_s
        )

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

    def _await(
        self, wanted: str, kind: type[_Answer], *, limit_s: float, silence_s: float
    ) -> _Answer:
        """Return the process's next message of *kind*, which is named *wanted*.

        Raises:
            RunnerLostError: no such message came, and the process has ended.
        """
        child, deadline = self._child, time.monotonic() + limit_s
        assert child is not None
        reason = f"took longer than {limit_s:g} s"
        try:
            while (left := deadline - time.monotonic()) > 0:
                message = child.receive(min(left, silence_s))
                if wanted in message:
                    return from_json(message[wanted], kind)
                if (ending := message.get("lost") or message.get("gone")) is not None:
                    reason = str(ending)
                    break
                if "waiting" in message:
                    self.on_wait(message["waiting"], message["seconds"])
        except ChildTimeoutError as silent:
            reason = reason if time.monotonic() >= deadline else str(silent)
        except ChildError as ended:
            reason = str(ended)
        except msgspec.ValidationError as error:
            reason = f"sent a damaged message: {error}"
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


def _worker_variables() -> dict[str, str]:
    """Return the environment of a process that imports this package, and serves from no table."""
    path = [_PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")}
    return {**plain, "PYTHONPATH": os.pathsep.join(path)}


def runners_of(
    slots: Sequence[DeviceSlot],
    order: WorkerOrder,
    patience: Patience,
    observer: Observer | None = None,
) -> list[LocalRunner]:
    """Return a runner for each worker of *slots*, the first workers of all devices first.

    The workers share the CPU cores for compiling. Each does *order* on its own device.
    """
    watcher = observer or Observer()
    own = compile_threads(sum(slot.lanes for slot in slots), devices=len(slots))

    def make(slot: DeviceSlot, lane: int) -> LocalRunner:
        name = worker_name(slot.name, lane)
        turn = Path(order.folder, f"turn-{slot.name.replace(':', '-')}")
        return LocalRunner(
            name=name,
            device=slot.name,
            order=replace(order, device=slot.inside, turn=str(turn), is_first=not lane),
            environment={**slot.environment, **own},
            patience=patience,
            on_wait=lambda reason, s: watcher.waiting_started(f"{name}: {reason}", s),
        )

    lanes = range(max(slot.lanes for slot in slots))
    return [make(slot, lane) for lane in lanes for slot in slots if lane < slot.lanes]


def worker_name(device: str, lane: int) -> str:
    """Return the name for people of the worker *lane* of *device*."""
    return device if not lane else f"{device} ({lane + 1})"


def compile_threads(workers: int, *, devices: int) -> dict[str, str]:
    """Return the variable by which each of *workers* has its share of the CPU cores for compiling.

    One worker of each of *devices* times and has a core for that; the others compile. Where each
    device has one worker, all compile. Empty where the environment has that variable already.
    """
    if _THREADS_VARIABLE in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0))
    share = (cores - devices) // (workers - devices) if workers > devices else cores // workers
    return {_THREADS_VARIABLE: str(max(1, share))}
