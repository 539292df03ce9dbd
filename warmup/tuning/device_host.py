"""The devices of this host, the workers on them, and what a build and its workers send each other.

`LocalRunner` starts and watches one worker process. A message is one JSON object, which `msgspec`
reads: the type of every value is checked. Rows travel with all their evidence.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec.structs import replace

from warmup.core.device import MachineState, Runtime
from warmup.core.errors import SettingsError
from warmup.core.phases import BuildStage
from warmup.core.processes import Child, ChildError, ChildTimeoutError
from warmup.core.roofline import Peaks
from warmup.core.rows import Row, Tuned
from warmup.table.schema import Policy
from warmup.tuning.report import BucketResult, Observer
from warmup.tuning.request import BuildOptions

ALL: Final = "all"
# Workers of a GPU: one times while the others compile. Of two, none timed for 40 % of a build on
# two H100s with 32 cores (docs/benchmarks/devices.py): the problems take from 2 to 25 s.
GPU_LANES: Final = 3
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
PROBLEM_S: Final = 1800.0
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "warmup.tuning.device_worker")
_DEVICE_NAME: Final = re.compile(r"cpu|cuda:[0-9]{1,3}")
_PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[2])
_THREADS_VARIABLE: Final = "TORCHINDUCTOR_COMPILE_THREADS"


class DeviceMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message; other fields than its own are refused."""

    def to_json(self) -> dict[str, Any]:
        """Return the message as JSON values."""
        fields: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_plain)
        return fields

    @classmethod
    def from_json(cls, fields: object) -> Self:
        """Return the message that `to_json` made.

        Raises:
            msgspec.ValidationError: *fields* are another document.
        """
        return msgspec.convert(fields, cls)


def _plain(value: object) -> str:
    if isinstance(value, str):  # torch's version is of a class of its own
        return str(value)
    raise NotImplementedError(type(value).__name__)


class WorkerOrder(DeviceMessage, frozen=True, kw_only=True):
    """What a worker needs to start: the ``options`` of the build on its device.

    It measures only while it holds the lock of the file ``turn``, which all workers of one device
    share. ``folder`` is its own, empty at first. ``parent`` is the process whose descendants are
    all of this build. The first worker of a device times the control problem, for all of them.
    """

    folder: str
    turn: str
    parent: int
    options: BuildOptions = msgspec.field(default_factory=BuildOptions)
    is_first: bool = True


class ReadyWorker(DeviceMessage, frozen=True, kw_only=True):
    """A worker that has started: its device, its software, and how it measures.

    ``control_us`` is its time of the control problem, None where it was not to time it.
    ``remarks`` are about the device.
    """

    runtime: Runtime
    policy: Policy
    control_us: float | None = None
    remarks: tuple[str, ...] = ()


class ProblemTask(DeviceMessage, frozen=True, kw_only=True):
    """A problem to tune: its key, and the ``rows`` of the table that the worker does not have yet.

    ``is_again``: a row that the key has is measured again.
    """

    key: str
    rows: Mapping[str, Row] = msgspec.field(default_factory=dict)
    is_again: bool = False


class FinishedProblem(DeviceMessage, frozen=True, kw_only=True):
    """What came of a `ProblemTask`, or of all problems of a task of Ray's.

    ``tuned`` has the rows that were measured for it, as they were measured, with every candidate's
    time; ``peaks`` are those of the device. The other values are those of
    `warmup.tuning.report.BuildReport`, of this problem alone; ``machine`` is the state since the
    worker started.
    """

    tuned: tuple[Tuned, ...] = ()
    peaks: Peaks | None = None
    buckets: tuple[BucketResult, ...] = ()
    not_rebuilt: Mapping[str, str] = msgspec.field(default_factory=dict)
    not_tuned: Mapping[str, str] = msgspec.field(default_factory=dict)
    not_fused: Mapping[str, str] = msgspec.field(default_factory=dict)
    distrusted: Mapping[str, str] = msgspec.field(default_factory=dict)
    stages: Mapping[BuildStage, float] = msgspec.field(default_factory=dict)
    machine: MachineState = msgspec.field(default_factory=MachineState)


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
        if name == "cpu":
            continue
        if names.count(name) > 1:
            raise SettingsError(f"--devices {text!r} has {name} twice", "name each GPU once")
        if int(name.partition(":")[2]) >= _gpu_count():
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


@dataclass(kw_only=True)
class LocalRunner:
    """A worker process that does ``order``, with ``environment`` over that of this process.

    It tunes one problem at a time, and is killed where it takes longer than ``problem_s`` seconds,
    or gives no sign of life for ``silence_s``. What it prints goes to a file, and the last line
    becomes part of the error when it dies. ``name`` and ``device`` are for people; several workers
    may share a device. ``observer`` is told when the worker waits for a quiet machine.
    """

    name: str
    device: str
    order: WorkerOrder
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 300.0
    silence_s: float = 120.0
    problem_s: float = PROBLEM_S
    command: Sequence[str] = WORKER_COMMAND
    observer: Observer = field(default_factory=Observer)
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
            # A process that imports torch gives no sign of life before it can.
            order, start_s = replace(self.order, folder=folder), self.start_s
            return self._ask(order, "ready", ReadyWorker, limit_s=start_s, silence_s=start_s)
        except RunnerLostError as lost:
            raise RunnerGoneError(str(lost)) from None

    def run(self, task: ProblemTask) -> FinishedProblem:
        """Return what came of *task* in the process.

        Raises:
            RunnerLostError: the process died, gave no sign of life, took too long or ran out of
                memory. It has ended.
        """
        limit_s, silence_s = self.problem_s, self.silence_s
        return self._ask(task, "finished", FinishedProblem, limit_s=limit_s, silence_s=silence_s)

    def stop(self) -> None:
        """End the process for good; a call that waits for it raises."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.end()

    def close(self) -> None:
        """End the process and close the pipes to it."""
        self.stop()
        self._kill()

    def _ask(
        self,
        message: DeviceMessage,
        wanted: str,
        kind: type[_Answer],
        *,
        limit_s: float,
        silence_s: float,
    ) -> _Answer:
        """Return the answer to *message*: of *kind*, and named *wanted*. Without one it is lost."""
        child, deadline = self._child, time.monotonic() + limit_s
        if child is None:
            raise RunnerLostError("has not started")
        # A pipe that nobody reads fills up: a child that does not take what is sent is ended.
        timer = threading.Timer(self.silence_s, child.end)
        timer.daemon = True
        timer.start()
        reason = f"took longer than {limit_s:g} s"
        try:
            child.send(message.to_json())
            timer.cancel()
            while (left := deadline - time.monotonic()) > 0:
                answer = child.receive(min(left, silence_s))
                if wanted in answer:
                    return kind.from_json(answer[wanted])
                if (ending := answer.get("lost") or answer.get("gone")) is not None:
                    reason = str(ending)
                    break
                if "waiting" in answer:
                    waiting = f"{self.name}: {answer['waiting']}"
                    self.observer.waiting_started(waiting, answer["seconds"])
        except ChildTimeoutError as silent:
            reason = reason if time.monotonic() >= deadline else str(silent)
        except ChildError as ended:
            reason = str(ended)
        except msgspec.ValidationError as error:
            reason = f"sent a damaged message: {error}"
        finally:
            timer.cancel()
        self._kill()
        raise RunnerLostError(reason)

    def _kill(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._child = None


def _worker_variables() -> dict[str, str]:
    """Return the environment of a process that imports this package, and serves from no table."""
    path = [_PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")}
    return {**plain, "PYTHONPATH": os.pathsep.join(path)}


def runners_of(
    slots: Sequence[DeviceSlot], order: WorkerOrder, problem_s: float, observer: Observer
) -> list[LocalRunner]:
    """Return a runner for each worker of *slots*, the first workers of all devices first.

    The workers share the CPU cores for compiling. Each does *order* on its own device.
    """
    threads = compile_threads(sum(slot.lanes for slot in slots), devices=len(slots))
    lanes = range(max(slot.lanes for slot in slots))
    return [
        LocalRunner(
            name=worker_name(slot.name, lane),
            device=slot.name,
            order=replace(
                order,
                options=dataclasses.replace(order.options, device=slot.inside),
                turn=str(Path(order.folder, f"turn-{slot.name.replace(':', '-')}")),
                is_first=not lane,
            ),
            environment={**slot.environment, **threads},
            problem_s=problem_s,
            observer=observer,
        )
        for lane in lanes
        for slot in slots
        if lane < slot.lanes
    ]


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
