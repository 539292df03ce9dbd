"""`Devices`: the runner that tunes problems on all devices of a host at the same time.

This process holds the queue and the table, and needs no device itself. Each device has workers
(`warmup.tuning.device_worker`) that take turns on it. A message is one JSON object in a line, and
`msgspec` checks the type of every value. Rows travel with all their evidence.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from warmup.core.device import NOT_CHECKED, MachineState, Runtime, compare_runtimes, united
from warmup.core.errors import BuildError, SettingsError
from warmup.core.files import temporary_folder
from warmup.core.processes import Child, ChildError, ChildTimeoutError, Message
from warmup.core.rows import Row
from warmup.table.codec import digest_of
from warmup.table.schema import Policy
from warmup.table.store import read_folded
from warmup.tuning.build import (
    BuildOptions,
    BuildRequest,
    TableOrigin,
    ThisProcess,
    check_out,
    open_table,
    seconds_to_wait,
)
from warmup.tuning.problems import MissedKeys, ProblemsSource, check_written, deadline_of
from warmup.tuning.progress import Progress
from warmup.tuning.report import (
    NOT_BEGUN,
    BuildReport,
    DeviceShare,
    Observer,
    ProblemResults,
    joined,
    open_earlier,
    say_each,
)

ALL: Final = "all"
# Workers of a GPU: one times while the others compile. Of two, none timed for 40 % of a build on
# two H100s with 32 cores (docs/benchmarks/devices.py): the problems take from 2 to 25 s.
GPU_LANES: Final = 3
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
PROBLEM_S: Final = 1800.0
MOST_LOSSES: Final = 2  # of one problem: the first device's, and that of the one that takes over
MOST_LOSSES_IN_A_ROW: Final = 3  # of one worker: then the device is to blame, not a problem
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "warmup.tuning.device_worker")
_DEVICE_NAME: Final = re.compile(r"cpu|cuda:[0-9]{1,3}")
_THREADS_VARIABLE: Final = "TORCHINDUCTOR_COMPILE_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What a worker needs to start: the ``options`` of the build on its device.

    It measures only while it holds the lock of the file ``turn``, which all workers of one device
    share. ``folder`` is its own, empty at first. ``parent`` is the process whose descendants are
    all of this build. The first worker of a device times the control problem, for all of them.
    """

    folder: str
    turn: str
    parent: int
    options: BuildOptions = field(default_factory=BuildOptions)
    is_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyWorker:
    """A worker that has started: its device and software, how it measures, remarks about it."""

    runtime: Runtime
    policy: Policy
    control_us: float | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemTask:
    """A problem to tune, and the ``rows`` of the table that the worker does not have yet.

    ``is_again``: a row that the key has is measured again.
    """

    key: str
    rows: Mapping[str, Row] = field(default_factory=dict)
    is_again: bool = False


def to_message(record: object) -> Message:
    message: Message = msgspec.to_builtins(record, enc_hook=str)  # torch's version is no plain str
    return message


class RunnerLostError(Exception):
    """The worker did not start, died, hung or ran out of memory; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """A device of this host: its ``name`` here, and how its ``lanes`` workers are started.

    They call the device ``inside`` and have the variables ``environment``.
    """

    name: str
    inside: str
    lanes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


def parse_devices(text: str) -> tuple[DeviceSlot, ...]:
    """Return the devices that *text* names, such as ``cuda:0,cuda:1``, or all GPUs for ``all``."""
    # ``cpu`` may be named several times: that many processes then take turns on it.
    import torch

    gpus = torch.cuda.device_count()
    names = [name.strip() for name in text.split(",")]
    if names == [ALL]:
        names = [f"cuda:{index}" for index in range(gpus)]
        if not names:
            raise SettingsError("--devices all: there is no GPU here", "name devices, or leave it")
    visible = os.environ.get(VISIBLE)
    shown = visible.split(",") if visible else [str(index) for index in range(gpus)]
    slots = []
    for name in dict.fromkeys(names):
        if not _DEVICE_NAME.fullmatch(name):
            raise SettingsError(
                f"--devices {text!r}: {name!r} is not a device",
                "use all, or names such as cuda:0,cuda:1",
            )
        if name == "cpu":
            slots.append(DeviceSlot(name="cpu", inside="cpu", lanes=names.count("cpu")))
            continue
        if names.count(name) > 1:
            raise SettingsError(f"--devices {text!r} has {name} twice", "name each GPU once")
        if (index := int(name.partition(":")[2])) >= gpus:
            raise SettingsError(
                f"--devices {text!r}: there are {gpus} GPUs here, and {name} is not one",
                "name GPUs that exist, or use all",
            )
        own = {VISIBLE: shown[index].strip()}  # it sees no other GPU, so that nothing lands there
        slots.append(DeviceSlot(name=name, inside="cuda:0", lanes=GPU_LANES, environment=own))
    return tuple(slots)


_Answer = TypeVar("_Answer")


@dataclass(kw_only=True)
class LocalRunner:
    """A worker process that does ``order``, with ``environment`` over that of this process.

    It tunes one problem at a time, and is killed where it takes longer than ``problem_s`` seconds,
    or gives no sign of life for ``silence_s``. ``name`` and ``device`` are for people; several
    workers may share a device. ``observer`` gets the event that the worker waits for quiet.
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
        """Start the process; a RunnerLostError says that it did not start, or `stop` came first."""
        folder = tempfile.mkdtemp(prefix="worker-", dir=self.order.folder)
        try:
            child = Child(self.command, self.environment)
        except OSError as error:
            raise RunnerLostError(f"cannot be started: {error}") from None
        with self._lock:
            self._child = child
            if self._is_stopped:
                child.end()
        # A process that imports torch gives no sign of life before it can.
        order, start_s = replace(self.order, folder=folder), self.start_s
        return self._ask(order, "ready", ReadyWorker, limit_s=start_s, silence_s=start_s)

    def run(self, task: ProblemTask) -> ProblemResults:
        """Return what came of *task*; a RunnerLostError says that the process has ended."""
        limits = {"limit_s": self.problem_s, "silence_s": self.silence_s}
        return self._ask(task, "finished", ProblemResults, **limits)

    def stop(self) -> None:
        """End the process for good; a call that waits for it raises."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.end()

    def close(self) -> None:
        self.stop()
        self._kill()

    def _ask(
        self, record: object, wanted: str, kind: type[_Answer], *, limit_s: float, silence_s: float
    ) -> _Answer:
        child, deadline = self._child, time.monotonic() + limit_s
        if child is None:
            raise RunnerLostError("has not started")
        reason = f"took longer than {limit_s:g} s"
        try:
            child.send(to_message(record), self.silence_s)
            while (left := deadline - time.monotonic()) > 0:
                answer = child.receive(min(left, silence_s))
                if wanted in answer:
                    return msgspec.convert(answer[wanted], kind)
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
        self._kill()
        raise RunnerLostError(reason)

    def _kill(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._child = None


def runners_of(
    slots: Sequence[DeviceSlot], order: WorkerOrder, problem_s: float, observer: Observer
) -> list[LocalRunner]:
    """Return a runner of *order* for each worker of *slots*, the first of all devices first."""
    threads = compile_threads(sum(slot.lanes for slot in slots), devices=len(slots))
    return [
        LocalRunner(
            name=slot.name if not lane else f"{slot.name} ({lane + 1})",
            device=slot.name,
            order=replace(
                order,
                options=replace(order.options, device=slot.inside),
                turn=str(Path(order.folder, f"turn-{slot.name.replace(':', '-')}")),
                is_first=not lane,
            ),
            environment={**slot.environment, **threads},
            problem_s=problem_s,
            observer=observer,
        )
        for lane in range(max(slot.lanes for slot in slots))
        for slot in slots
        if lane < slot.lanes
    ]


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


@dataclass(kw_only=True)
class SharedBuild:
    """A build of problems by several processes: its table on disk, and its report.

    After ``deadline`` no problem is begun. ``known`` are the keys that had a row. ``machines`` has
    what disturbed each process, and ``failed``, by key, why a problem was given up.
    """

    request: BuildRequest
    observer: Observer
    known: tuple[str, ...] = ()
    progress: Progress | None = None
    results: list[ProblemResults] = field(default_factory=list)
    shares: dict[str, DeviceShare] = field(default_factory=dict)
    machines: dict[tuple[str, int], MachineState] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    keys: MissedKeys = field(init=False)
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        source, options = self.request.source, self.request.options
        assert isinstance(source, ProblemsSource)
        self.keys = MissedKeys(source.missed(), source.search(options), force=options.force)
        check_out(self.request.path)
        self.deadline = deadline_of(options, self.started)

    def split(self, rows: Mapping[str, Row]) -> list[str]:
        """Return the keys to tune; the others, which a row of *rows* answers, are ``known``."""
        self.known, wanted = self.keys.split(rows)
        return wanted

    def open(self, origin: TableOrigin) -> Progress:
        """Open the table, for rows that are measured as by *origin*."""
        from warmup.inductor import connect

        path, options = self.request.path, self.request.options
        table, replaces = open_table(path, origin, force=options.force)
        self.observer.measuring_on(origin.runtime, origin.policy.timing)
        self.progress = Progress(
            path=path,
            table=table,
            replaces=replaces,
            observer=self.observer,
            revisit=self.keys.revisit(table),
            earlier=open_earlier(
                options.rows_from,
                table,
                lambda: connect().template_sources(),
                measures_again=options.measures_again,
                is_dry=False,
            ),
        )
        return self.progress

    def add(self, results: ProblemResults, keys: Collection[str], device: str) -> None:
        """Write the rows of *results*, what came of *keys* on *device*, to the table.

        A row that another problem has measured meanwhile, on the way, stays.
        """
        progress = self.progress
        assert progress is not None
        progress.measured_peaks = lambda: results.peaks
        measured = progress.keys_since(0)
        progress.save(
            *(one for one in results.timings if one.key in keys or one.key not in measured)
        )
        for key, reason in results.distrusted.items():
            if key in progress.table.rows:
                progress.distrust([key], reason)
        self.results.append(results)
        self.note(device, problems=self._share(device).problems + len(keys))

    def leave_out(self, device: str, reason: str) -> None:
        self.note(device, left_out=reason)
        self.observer.said(f"{device} is left out: {reason}")

    def note(self, device: str, **changes: Any) -> None:
        self.shares[device] = replace(self._share(device), **changes)

    def _share(self, device: str) -> DeviceShare:
        return self.shares.get(device, DeviceShare(name=device, problems=0))

    def report(self) -> BuildReport:
        path, progress = self.request.path, self.progress
        timings = () if progress is None else progress.measured
        tuned, together = {one.key for one in timings}, joined(self.results)
        # What a worker gave up may have been measured on the way to another problem.
        given_up = {**together.not_tuned, **self.failed}
        not_tuned = {key: why for key, why in given_up.items() if key not in tuned}
        check_written(path, len(self.keys.missed), together.not_rebuilt, not_tuned)
        final = read_folded(path)
        results = replace(
            together,
            timings=timings,
            not_tuned=not_tuned,
            peaks=final.provenance.peaks,
            machine=united(self.machines.values()),
        )
        return BuildReport(
            **results.results(),
            path=path,
            table=final,
            digest=digest_of(final),
            seconds=time.monotonic() - self.started,
            known=self.known,
            rows_from=progress.earlier.used(tuned) if progress and progress.earlier else (),
            devices=tuple(self.shares.values()),
        )


def check_one_kind(runtimes: Mapping[str, Runtime]) -> None:
    """Raise a SettingsError that names two devices, by name in *runtimes*, of different kinds."""
    (first, expected), *others = runtimes.items()
    for name, runtime in others:
        is_other = any(mismatch.is_hard for mismatch in compare_runtimes(expected, runtime))
        if is_other or runtime.device.name != expected.device.name:
            raise SettingsError(
                f"--devices mixes kinds: {first} is {expected}, {name} is {runtime}",
                "name devices of one kind, and build for each kind into a table of its own",
            )


def devices_off(control_us: Mapping[str, float], band: float) -> dict[str, str]:
    """Return, by device, why its rows would not be comparable; empty where all are."""
    # *control_us* has the time of the control problem on each device. The device in the middle is
    # what the others are held against (of two the faster, of four the second), and *band* is the
    # share of its time by which another may differ.
    if not control_us:
        return {}
    middle_us = statistics.median_low(control_us.values())
    middle = next(name for name, time_us in control_us.items() if time_us == middle_us)
    return {
        name: f"the control problem takes {time_us:.1f} us, {time_us / middle_us - 1:+.1%} against "
        f"{middle} ({middle_us:.1f} us); at most {band:.0%} is comparable"
        for name, time_us in control_us.items()
        if abs(time_us / middle_us - 1) > band
    }


def start_workers(
    runners: Sequence[LocalRunner], pool: ThreadPoolExecutor, build: SharedBuild
) -> tuple[list[LocalRunner], ReadyWorker]:
    """Start *runners*; return those whose devices are comparable, and the answer of one."""
    ready, gone = dict[str, ReadyWorker](), dict[str, str]()
    starts = {runner.name: pool.submit(runner.start) for runner in runners}
    for name, start in starts.items():
        try:
            ready[name] = start.result()
        except RunnerLostError as error:
            gone[name] = str(error)
    if not ready:
        raise _no_device("started", gone)
    check_one_kind({name: worker.runtime for name, worker in ready.items()})
    control_us = {
        runner.device: time_us
        for runner in runners
        if runner.name in ready and (time_us := ready[runner.name].control_us) is not None
    }
    left_out = {
        runner.device: f"the control problem was not timed: {gone[runner.name]}"
        for runner in runners
        if runner.device not in control_us and runner.name in gone
    }
    band = next(iter(ready.values())).policy.timing.near_tie
    left_out |= {**_without_worker(runners, gone), **devices_off(control_us, band)}
    takes_part = [each for each in runners if each.name in ready and each.device not in left_out]
    if not takes_part:
        raise _no_device("can be used", left_out)
    for runner in runners:
        build.note(runner.device, control_us=control_us.get(runner.device))
    say_each(build.observer, (text for name in ready for text in _named(name, ready[name].remarks)))
    for device, reason in left_out.items():
        build.leave_out(device, reason)
    for runner in runners:
        if runner not in takes_part:
            runner.stop()
    in_use = dict.fromkeys(each.device for each in takes_part)
    times = ", ".join(f"{name} {control_us[name]:.1f} us" for name in in_use)
    build.observer.said(f"devices that time: {times} for the control problem")
    return takes_part, ready[takes_part[0].name]


def _without_worker(runners: Sequence[LocalRunner], gone: Mapping[str, str]) -> dict[str, str]:
    left = {each.device for each in runners if each.name not in gone}
    reasons: dict[str, dict[str, None]] = {}
    for each in runners:
        if each.device not in left:
            reasons.setdefault(each.device, {})[gone[each.name]] = None
    return {device: "; ".join(own) for device, own in reasons.items()}


def _no_device(what: str, reasons: Mapping[str, str]) -> BuildError:
    said = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return BuildError(f"no device {what}: {said}", "run `warmup doctor`")


def _named(name: str, remarks: Iterable[str]) -> tuple[str, ...]:
    return tuple(text if text.startswith(NOT_CHECKED) else f"{name}: {text}" for text in remarks)


@dataclass(kw_only=True)
class Dispatch:
    """Gives each worker problem after problem, and a lost problem to another device.

    ``waiting`` are the keys to tune, in order; a key whose worker was lost waits in front, for
    another device. ``gone`` has, by the name of a worker, why it was given up.
    """

    build: SharedBuild
    progress: Progress
    waiting: list[str]
    total: int
    gone: dict[str, str] = field(default_factory=dict)
    _sent: dict[str, dict[str, Row]] = field(default_factory=dict)
    _losses: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # by key
    _lost: Counter[str] = field(default_factory=Counter)  # problems of each worker
    _in_a_row: Counter[str] = field(default_factory=Counter)

    def run(self, runners: Sequence[LocalRunner], pool: ThreadPoolExecutor) -> None:
        """Run every problem on *runners*, which have started.

        *pool* has a thread for each. The build's ``failed`` has the problems that no worker was
        left for. Where the table cannot be written, the error leaves calls under way.
        """
        idle = list(runners)
        # Calls under way; without a key the worker starts again.
        under_way = dict[Future[Any], tuple[LocalRunner, str | None]]()
        while True:
            in_use = [*idle, *(runner for runner, _ in under_way.values())]
            for runner in tuple(idle):
                if (key := self._take(runner, in_use)) is not None:
                    idle.remove(runner)
                    under_way[pool.submit(runner.run, self._task_for(runner, key))] = runner, key
            is_needed = self.waiting or any(key for _, key in under_way.values())
            if not under_way or not is_needed:  # a worker may start again, for nothing
                break
            for call in wait(under_way, return_when=FIRST_COMPLETED).done:
                runner, key = under_way.pop(call)
                if self._has_ended_well(runner, key, call):
                    idle.append(runner)
                elif runner.name not in self.gone and self.waiting:
                    under_way[pool.submit(runner.start)] = runner, None
        self._fail_rest("no device is left")

    def _has_ended_well(self, runner: LocalRunner, key: str | None, call: Future[Any]) -> bool:
        try:
            answer = call.result()
        except RunnerLostError as error:
            if key is None:
                self.gone[runner.name] = f"did not start again: {error}"
            else:
                self._lose(runner, key, str(error))
            return False
        if key is not None:
            self._finish(runner, key, answer)
        return True

    def _take(self, runner: LocalRunner, in_use: Sequence[LocalRunner]) -> str | None:
        # A device gets a key that it lost only when no other device in use is left to take it.
        if time.monotonic() >= self.build.deadline:
            self._fail_rest(NOT_BEGUN)
        devices = {each.device for each in in_use}
        for index, key in enumerate(self.waiting):
            lost_by = {device for device, _ in self._losses.get(key, ())}
            if runner.device not in lost_by or devices <= lost_by:
                return self.waiting.pop(index)
        return None

    def _fail_rest(self, reason: str) -> None:
        for key in self.waiting:
            self.build.failed[key] = "; ".join([reason, *self._said(key)])
        self.waiting.clear()

    def _said(self, key: str) -> list[str]:
        return [f"the worker on {device} {why}" for device, why in self._losses.get(key, ())]

    def _task_for(self, runner: LocalRunner, key: str) -> ProblemTask:
        sent, rows = self._sent.setdefault(runner.name, {}), self.progress.rows
        rows.get(key)  # an earlier table's row is taken when it is looked up
        fresh = {name: row for name, row in rows.items() if sent.get(name) is not row}
        sent.update(fresh)
        self.build.observer.problem_given(key, runner.device, self.total)
        return ProblemTask(key=key, rows=fresh, is_again=key in self.progress.revisit.keys)

    def _finish(self, runner: LocalRunner, key: str, results: ProblemResults) -> None:
        self._in_a_row[runner.name] = 0
        self.build.add(results, [key], runner.device)
        for result in results.buckets:
            self.build.observer.bucket_finished(result)
        state = results.machine  # since the process started: the last of each process counts
        self.build.machines[runner.name, self._lost[runner.name]] = replace(
            state,
            complaints=_named(runner.name, state.complaints),
            notes=_named(runner.name, state.notes),
        )

    def _lose(self, runner: LocalRunner, key: str, reason: str) -> None:
        name, losses = runner.name, self._losses.setdefault(key, [])
        losses.append((runner.device, reason))
        if goes_on := len(losses) < MOST_LOSSES:
            self.waiting.insert(0, key)
        else:
            self.build.failed[key] = "; then ".join(self._said(key))
        self._lost[name] += 1
        self._in_a_row[name] += 1
        self._sent.pop(name, None)
        self.build.observer.problem_lost(key, runner.device, reason, goes_on=goes_on)
        if self._in_a_row[name] >= MOST_LOSSES_IN_A_ROW:
            self.gone[name] = f"lost {self._in_a_row[name]} problems in a row: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The runner on the devices ``names`` of this host, such as ``cuda:0,cuda:1`` or ``all``.

    A problem whose worker dies, hangs, takes longer than ``problem_limit_s`` or runs out of memory
    is tuned on another device, and reported as not tuned when that is lost too. Once the budget is
    spent no further problem is begun; those that wait are not tuned, for `NOT_BEGUN`. Descendants
    of the process ``parent``, this one if None, are no disturbance.
    """

    names: str
    problem_limit_s: float = PROBLEM_S
    parent: int | None = None

    @property
    def label(self) -> str:
        return f"--devices {self.names}"

    @property
    def first_device(self) -> str:
        return parse_devices(self.names)[0].name

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        """Return the options of one device; of a model, what measures rows a second time."""
        if isinstance(request.source, ProblemsSource):
            return frozenset({"device"})
        return frozenset({"device", "force", "retry", "budget", "invariant"})

    def tune(self, request: BuildRequest, observer: Observer) -> BuildReport:
        """Tune the problems of *request*; a plan is made with the first device alone.

        A SettingsError says that the devices cannot be used, or are of several kinds, a BuildError
        that none started.
        """
        slots, options = parse_devices(self.names), request.options
        if options.dry_run:
            options = replace(options, device=slots[0].name)
            return ThisProcess().tune(replace(request, options=options), observer)
        build = SharedBuild(request=request, observer=observer)
        with temporary_folder("warmup-devices-") as folder:
            of_worker = replace(
                options,
                wait_for_quiet=seconds_to_wait(options.wait_for_quiet),
                rows_from=(),
                force=False,
                budget=None,
            )
            parent = self.parent or os.getpid()
            order = WorkerOrder(folder=str(folder), turn="", parent=parent, options=of_worker)
            return tune_with(runners_of(slots, order, self.problem_limit_s, observer), build)


def tune_with(runners: Sequence[LocalRunner], build: SharedBuild) -> BuildReport:
    """Tune the problems of *build* on *runners*, none of which has started."""
    with contextlib.ExitStack() as stack:
        for runner in runners:
            stack.callback(runner.close)
        pool = stack.enter_context(ThreadPoolExecutor(len(runners)))
        for runner in runners:  # before the pool waits for their calls
            stack.callback(runner.stop)
        workers, origin = start_workers(runners, pool, build)
        progress = stack.enter_context(build.open(origin))
        keys = build.split(progress.rows)
        progress.flush()
        dispatch = Dispatch(build=build, progress=progress, waiting=keys, total=len(keys))
        dispatch.run(workers, pool)
        for device, reason in _without_worker(workers, dispatch.gone).items():
            build.leave_out(device, reason)
    return build.report()
