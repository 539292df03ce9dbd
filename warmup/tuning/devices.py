"""`Devices`: the runner that tunes problems on all devices of a host at the same time.

This process holds the queue and the table, and needs no device itself: what it knows of the devices
is what their workers say.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warmup.core.device import NOT_CHECKED, MachineState, Runtime, compare_runtimes, united
from warmup.core.errors import BuildError, SettingsError
from warmup.core.rows import Row
from warmup.table.codec import digest_of
from warmup.table.store import read_folded
from warmup.tuning.build import TableOrigin, ThisProcess, check_out, open_table, seconds_to_wait
from warmup.tuning.device_host import (
    PROBLEM_S,
    FinishedProblem,
    LocalRunner,
    ProblemTask,
    ReadyWorker,
    RunnerGoneError,
    RunnerLostError,
    WorkerOrder,
    parse_devices,
    runners_of,
)
from warmup.tuning.problems import MissedKeys, ProblemsSource, check_written, deadline_of
from warmup.tuning.progress import Progress
from warmup.tuning.report import (
    NOT_BEGUN,
    BuildReport,
    DeviceShare,
    Observer,
    open_earlier,
    summed,
)
from warmup.tuning.request import BuildRequest

MOST_LOSSES: Final = 2  # of one problem: the first device's, and that of the one that takes over
MOST_LOSSES_IN_A_ROW: Final = 3  # of one worker: then the device is to blame, not a problem
# Calls under way; without a key the worker starts again.
_Calls = dict[Future[Any], tuple[LocalRunner, str | None]]


@dataclass(kw_only=True)
class SharedBuild:
    """A build of problems by several processes: its table on disk, and its report.

    After ``deadline`` no problem is begun. ``known`` are the keys that had a row. ``shares`` has
    what each device did, ``machines`` what disturbed each process, and ``failed``, by key, why a
    problem was given up.
    """

    request: BuildRequest
    observer: Observer
    keys: MissedKeys
    deadline: float
    started: float
    known: tuple[str, ...] = ()
    progress: Progress | None = None
    results: list[FinishedProblem] = field(default_factory=list)
    shares: dict[str, DeviceShare] = field(default_factory=dict)
    machines: dict[tuple[str, int], MachineState] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: BuildRequest, observer: Observer) -> SharedBuild:
        """Return the build of *request*, whose source are problems; nothing is tuned yet.

        Raises:
            SettingsError: the document cannot be used.
            TableWriteError: the table cannot be written.
            NothingRecordedError: the share is empty.
        """
        started, source, options = time.monotonic(), request.source, request.options
        assert isinstance(source, ProblemsSource)
        keys = MissedKeys(source.missed(), source.search(options), force=options.force)
        check_out(request.path)
        return cls(
            request=request,
            observer=observer,
            keys=keys,
            deadline=deadline_of(options, started),
            started=started,
        )

    def split(self, rows: Mapping[str, Row]) -> list[str]:
        """Return the keys to tune; the others, which a row of *rows* answers, are ``known``."""
        self.known, wanted = self.keys.split(rows)
        return wanted

    def open(self, origin: TableOrigin) -> Progress:
        """Open the table, for rows that are measured as by *origin*.

        Raises:
            TableError: the table, or one of the tables to take rows from, cannot be used.
        """
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

    def add(self, finished: FinishedProblem, keys: Collection[str], device: str) -> None:
        """Write the rows of *finished*, what came of *keys* on *device*, to the table.

        A row that another problem has measured meanwhile, on the way, stays.

        Raises:
            TableError: the table cannot be written.
        """
        progress = self.progress
        assert progress is not None
        if (peaks := finished.peaks) is not None:
            progress.measured_peaks = lambda: peaks
        measured = progress.keys_since(0)
        progress.save(
            *(one for one in finished.tuned if one.key in keys or one.key not in measured)
        )
        for key, reason in finished.distrusted.items():
            if key in progress.table.rows:
                progress.distrust([key], reason)
        self.results.append(finished)
        share = self.shares.get(device, DeviceShare(name=device, problems=0))
        self.shares[device] = replace(share, problems=share.problems + len(keys))

    def leave_out(self, device: str, reason: str) -> None:
        """Record that *device* takes no further problem, for *reason*."""
        share = self.shares.get(device, DeviceShare(name=device, problems=0))
        self.shares[device] = replace(share, left_out=reason)
        self.observer.device_left_out(device, reason)

    def report(self) -> BuildReport:
        """Return the report of the build, which has ended.

        Raises:
            NothingRecordedError: there is no table.
        """
        timings = () if self.progress is None else self.progress.measured
        earlier = None if self.progress is None else self.progress.earlier
        tuned, path = {one.key for one in timings}, self.request.path
        not_rebuilt = _joined(each.not_rebuilt for each in self.results)
        # What a worker gave up may have been measured on the way to another problem.
        given_up = _joined([*(each.not_tuned for each in self.results), self.failed])
        not_tuned = {key: why for key, why in given_up.items() if key not in tuned}
        check_written(path, len(self.keys.missed), not_rebuilt, not_tuned)
        final = read_folded(path)
        return BuildReport(
            *(path, final, digest_of(final)),
            tuple(result for each in self.results for result in each.buckets),
            timings,
            time.monotonic() - self.started,
            self.known,
            not_rebuilt,
            not_tuned,
            _joined(each.not_fused for each in self.results),
            final.provenance.peaks,
            distrusted=_joined(each.distrusted for each in self.results),
            machine=united(self.machines.values()),
            stages=summed(each.stages for each in self.results),
            rows_from=earlier.used(tuned) if earlier else (),
            devices=tuple(self.shares.values()),
        )


def _joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key: why for part in parts for key, why in part.items()}


def check_one_kind(runtimes: Mapping[str, Runtime]) -> None:
    """Raise a SettingsError that names two devices, by name in *runtimes*, of different kinds."""
    (first, expected), *others = runtimes.items()
    for name, runtime in others:
        is_other = any(mismatch.is_hard for mismatch in compare_runtimes(expected, runtime))
        if is_other or runtime.device.name != expected.device.name:
            raise SettingsError(
                f"--devices mixes kinds: {first} is {_described(expected)}, {name} is "
                f"{_described(runtime)}",
                "name devices of one kind, and build for each kind into a table of its own",
            )


def _described(runtime: Runtime) -> str:
    device = runtime.device
    counts = ((device.sm_count, "SMs"), (device.memory_gib, "GiB"), (device.threads, "threads"))
    known = " and ".join(f"{count} {unit}" for count, unit in counts if count is not None)
    return f"{device.name}{f' {device.mig}' if device.mig else ''} with {known}"


def devices_off(control_us: Mapping[str, float], band: float) -> dict[str, str]:
    """Return, by device, why its rows would not be comparable; empty where all are.

    *control_us* has the time of the control problem on each device. The device in the middle is
    what the others are held against (of two the faster, of four the second), and *band* is the
    share of its time by which another may differ.
    """
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


class ProblemQueue:
    """The keys that wait, in order; a key whose worker was lost waits in front, for another device.

    ``total`` is their number at first; ``failed`` has, by key, why it is not tuned: how its workers
    were lost, or that it still waited when `time.monotonic` reached *deadline*.
    """

    def __init__(self, keys: Iterable[str], deadline: float = math.inf) -> None:
        self._waiting = list(keys)
        self.total = len(self._waiting)
        self._deadline = deadline
        self._lost: dict[str, list[tuple[str, str]]] = {}
        self.failed: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, device: str, others: Collection[str]) -> str | None:
        """Return the next key for *device*; None where every waiting key is for one of *others*.

        A device gets a key that it lost only when none of *others*, the devices in use beside it,
        is left to take it. At the deadline all that waits fails.
        """
        if self._waiting and time.monotonic() >= self._deadline:
            self.fail_rest(NOT_BEGUN)
        for index, key in enumerate(self._waiting):
            lost_by = {name for name, _ in self._lost.get(key, ())}
            if device not in lost_by or not set(others) - lost_by - {device}:
                return self._waiting.pop(index)
        return None

    def lose(self, key: str, device: str, reason: str) -> bool:
        """Record that the worker on *device* was lost with *key*; return whether it waits again."""
        losses = self._lost.setdefault(key, [])
        losses.append((device, reason))
        if len(losses) < MOST_LOSSES:
            self._waiting.insert(0, key)
            return True
        self.failed[key] = "; then ".join(_said(losses))
        return False

    def fail_rest(self, reason: str) -> None:
        """Give up every key that waits, for *reason*."""
        for key in self._waiting:
            self.failed[key] = "; ".join([reason, *_said(self._lost.get(key, ()))])
        self._waiting.clear()


def _said(losses: Iterable[tuple[str, str]]) -> list[str]:
    return [f"the worker on {name} {why}" for name, why in losses]


def start_workers(
    runners: Sequence[LocalRunner], pool: ThreadPoolExecutor, build: SharedBuild
) -> tuple[list[LocalRunner], ReadyWorker]:
    """Start *runners*; return those whose devices are comparable, and the answer of one."""
    ready, gone = dict[str, ReadyWorker](), dict[str, str]()
    starts = {runner.name: pool.submit(runner.start) for runner in runners}
    for name, start in starts.items():
        try:
            ready[name] = start.result()
        except RunnerGoneError as error:
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
    for device in dict.fromkeys(runner.device for runner in runners):
        build.shares[device] = DeviceShare(
            name=device, problems=0, control_us=control_us.get(device)
        )
    remarks = (text for name in ready for text in _named(name, ready[name].remarks))
    build.observer.device_looked_at(tuple(dict.fromkeys(remarks)))
    for device, reason in left_out.items():
        build.leave_out(device, reason)
    for runner in runners:
        if runner not in takes_part:
            runner.stop()
    in_use = list(dict.fromkeys(each.device for each in takes_part))
    build.observer.devices_ready(in_use, control_us)
    return takes_part, ready[takes_part[0].name]


def _without_worker(runners: Sequence[LocalRunner], gone: Mapping[str, str]) -> dict[str, str]:
    """Return, by device, why none of its *runners* is left; *gone* has the reason by runner."""
    reasons: dict[str, list[str | None]] = {}
    for runner in runners:
        reasons.setdefault(runner.device, []).append(gone.get(runner.name))
    return {
        device: "; ".join(dict.fromkeys(filter(None, own)))
        for device, own in reasons.items()
        if None not in own
    }


def _no_device(what: str, reasons: Mapping[str, str]) -> BuildError:
    said = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return BuildError(f"no device {what}: {said}", "run `warmup doctor`")


def _named(name: str, remarks: Iterable[str]) -> tuple[str, ...]:
    """Return *remarks* with the *name* of the device, where they are about one."""
    return tuple(text if text.startswith(NOT_CHECKED) else f"{name}: {text}" for text in remarks)


@dataclass(kw_only=True)
class Dispatch:
    """Gives each worker problem after problem, and a lost problem to another device.

    ``gone`` has, by the name of a worker, why it was given up.
    """

    build: SharedBuild
    progress: Progress
    queue: ProblemQueue
    gone: dict[str, str] = field(default_factory=dict)
    _sent: dict[str, dict[str, Row]] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)  # problems of each worker

    def run(self, runners: Sequence[LocalRunner], pool: ThreadPoolExecutor) -> None:
        """Run every problem of the queue on *runners*, which have started.

        *pool* has a thread for each. Problems that no worker was left for are in ``queue.failed``.
        Where the table cannot be written, the error leaves calls under way.
        """
        idle, under_way, in_a_row = list(runners), _Calls(), Counter[str]()
        while True:
            self._assign(idle, under_way, pool)
            is_needed = len(self.queue) > 0 or any(key for _, key in under_way.values())
            if not under_way or not is_needed:  # a worker may start again, for nothing
                break
            for call in wait(under_way, return_when=FIRST_COMPLETED).done:
                runner, key = under_way.pop(call)
                try:
                    answer = call.result()
                except RunnerGoneError as error:
                    self.gone[runner.name] = f"did not start again: {error}"
                    continue
                except RunnerLostError as error:
                    assert key is not None
                    in_a_row[runner.name] += 1
                    self._lose(runner, key, str(error))
                    if in_a_row[runner.name] >= MOST_LOSSES_IN_A_ROW:
                        lost = f"lost {in_a_row[runner.name]} problems in a row"
                        self.gone[runner.name] = f"{lost}: {error}"
                    elif len(self.queue):
                        under_way[pool.submit(runner.start)] = runner, None
                    continue
                if key is not None:
                    in_a_row[runner.name] = 0
                    self._finish(runner, key, answer)
                idle.append(runner)
        if len(self.queue):
            self.queue.fail_rest("no device is left")

    def _assign(self, idle: list[LocalRunner], under_way: _Calls, pool: ThreadPoolExecutor) -> None:
        """Give each worker in *idle* a problem that it may take, if there is one."""
        in_use = [*idle, *(runner for runner, _ in under_way.values())]
        for runner in tuple(idle):
            others = {each.device for each in in_use if each is not runner}
            if (key := self.queue.take(runner.device, others)) is not None:
                idle.remove(runner)
                under_way[pool.submit(runner.run, self._task_for(runner, key))] = runner, key

    def _task_for(self, runner: LocalRunner, key: str) -> ProblemTask:
        """Return the task for *key*, with the rows that *runner* does not have yet."""
        sent, rows = self._sent.setdefault(runner.name, {}), self.progress.rows
        rows.get(key)  # an earlier table's row is taken when it is looked up
        fresh = {name: row for name, row in rows.items() if sent.get(name) is not row}
        sent.update(fresh)
        self.build.observer.problem_given(key, runner.device, self.queue.total)
        return ProblemTask(key=key, rows=fresh, is_again=key in self.progress.revisit.keys)

    def _finish(self, runner: LocalRunner, key: str, finished: FinishedProblem) -> None:
        self.build.add(finished, [key], runner.device)
        for result in finished.buckets:
            self.build.observer.bucket_finished(result)
        state = finished.machine  # since the process started: the last of each process counts
        self.build.machines[runner.name, self._lost[runner.name]] = replace(
            state,
            complaints=_named(runner.name, state.complaints),
            notes=_named(runner.name, state.notes),
        )

    def _lose(self, runner: LocalRunner, key: str, reason: str) -> None:
        """Let another device take *key* over, and forget which rows the lost worker had."""
        goes_on = self.queue.lose(key, runner.device, reason)
        self._lost[runner.name] += 1
        self._sent.pop(runner.name, None)
        self.build.observer.problem_lost(key, runner.device, reason, goes_on=goes_on)


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
        """The option of the command line."""
        return f"--devices {self.names}"

    @property
    def first_device(self) -> str:
        """The name of the first device."""
        return parse_devices(self.names)[0].name

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        """Return the options of one device; of a model, what measures rows a second time."""
        if isinstance(request.source, ProblemsSource):
            return frozenset({"device"})
        return frozenset({"device", "force", "retry", "budget"})

    def tune(self, request: BuildRequest, observer: Observer) -> BuildReport:
        """Tune the problems of *request*; a plan is made with the first device alone.

        Raises:
            SettingsError: the devices cannot be used, or are of several kinds.
            BuildError: no device started.
        """
        slots, options = parse_devices(self.names), request.options
        if options.dry_run:
            options = replace(options, device=slots[0].name)
            return ThisProcess().tune(replace(request, options=options), observer)
        build = SharedBuild.of(request, observer)
        with tempfile.TemporaryDirectory(
            prefix="warmup-devices-", ignore_cleanup_errors=True
        ) as folder:
            order = WorkerOrder(
                folder=folder,
                turn="",
                parent=self.parent or os.getpid(),
                options=replace(
                    options,
                    wait_for_quiet=seconds_to_wait(options.wait_for_quiet),
                    rows_from=(),
                    force=False,
                    budget=None,
                ),
            )
            return tune_with(runners_of(slots, order, self.problem_limit_s, observer), build)


def tune_with(runners: Sequence[LocalRunner], build: SharedBuild) -> BuildReport:
    """Tune the problems of *build* on *runners*, none of which has started.

    Raises as `Devices.tune` does.
    """
    with contextlib.ExitStack() as stack:
        for runner in runners:
            stack.callback(runner.close)
        pool = stack.enter_context(ThreadPoolExecutor(len(runners)))
        for runner in runners:  # before the pool waits for their calls
            stack.callback(runner.stop)
        workers, origin = start_workers(runners, pool, build)
        progress = stack.enter_context(build.open(origin))
        queue = ProblemQueue(build.split(progress.rows), build.deadline)
        progress.flush()
        dispatch = Dispatch(build=build, progress=progress, queue=queue)
        dispatch.run(workers, pool)
        build.failed = queue.failed
        for device, reason in _without_worker(workers, dispatch.gone).items():
            build.leave_out(device, reason)
    return build.report()
