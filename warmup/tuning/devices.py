"""`build_on_devices`: tunes missed problems on all devices of a host at the same time.

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
from pathlib import Path
from typing import Any, Final

from warmup.core.device import NOT_CHECKED, Runtime, compare_runtimes, united
from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.method import Search
from warmup.core.rows import Row
from warmup.core.text import shown
from warmup.keys.registry import kind_of
from warmup.serving.audit import MissedProblem
from warmup.table.schema import PolicyOptions
from warmup.tuning.build import build
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
from warmup.tuning.problems import MissedBuild, as_problems, begin_build, summed
from warmup.tuning.progress import Progress
from warmup.tuning.report import NOT_BEGUN, BuildReport, DeviceShare, Observer, united_sources
from warmup.tuning.setup import seconds_to_wait

MOST_LOSSES: Final = 2  # of one problem: the first device's, and that of the one that takes over
MOST_LOSSES_IN_A_ROW: Final = 3  # of one worker: then the device is to blame, not a problem
# Calls under way; without a key the worker starts again.
_Calls = dict[Future[Any], tuple[LocalRunner, str | None]]
# Arguments of `build` that `build_on_devices` has too, and for which they mean the same.
_OF_PROBLEMS: Final = (
    *("mode", "backends", "tolerance", "launch", "l2", "fused_top_k", "search"),
    "wait_for_quiet",
)
REFUSED: Final = ("force", "retry", "budget")


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


def start_crew(
    runners: Sequence[LocalRunner], pool: ThreadPoolExecutor, build: MissedBuild
) -> tuple[list[LocalRunner], ReadyWorker]:
    """Start *runners*; return those whose devices are comparable, and what one of them said."""
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

    build: MissedBuild
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


def build_on_devices(
    problems: str | Path | Sequence[MissedProblem],
    *,
    devices: str,
    out: str | Path,
    search: str = Search.DEFAULT,
    force: bool = False,
    wait_for_quiet: float | None = None,
    rows_from: Sequence[str | Path] = (),
    shard: str | None = None,
    problem_limit_s: float = PROBLEM_S,
    seconds: float | None = None,
    parent: int | None = None,
    observer: Observer | None = None,
    **policy: Any,
) -> BuildReport:
    """Tune the problems of the misses document *problems* on all of *devices*, into *out*.

    *out* is a table. *devices* are names, ``cuda:0,cuda:1``, or ``all``. Which problems are tuned,
    and what the other arguments mean, is as in `build_problems`; *policy* has the fields of
    `PolicyOptions`. A problem whose worker dies, hangs, takes longer than *problem_limit_s* or runs
    out of memory is tuned on another device, and reported as not tuned when that is lost too. Once
    *seconds* have passed no further problem is begun; those that wait are not tuned, for
    `NOT_BEGUN`. Descendants of the process *parent*, this one if None, are no disturbance.

    Raises:
        SettingsError: an argument cannot be used, or the devices are of several kinds.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
        BuildError: no device started.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*; or the
            share is empty.
    """
    slots = parse_devices(devices)
    build = begin_build(
        *(problems, out),
        shard=shard,
        search=search,
        force=force,
        seconds=seconds,
        observer=observer,
    )
    with tempfile.TemporaryDirectory(prefix="warmup-devices-") as folder:
        order = WorkerOrder(
            device="",
            folder=folder,
            turn="",
            parent=parent or os.getpid(),
            policy=PolicyOptions(**policy),
            search=search,
            wait_s=seconds_to_wait(wait_for_quiet),
        )
        runners = runners_of(slots, order, problem_limit_s, build.observer)
        return build_with(runners, build, rows_from)


def build_with(
    runners: Sequence[LocalRunner], build: MissedBuild, rows_from: Sequence[str | Path] = ()
) -> BuildReport:
    """Tune the problems of *build* on *runners*, none of which has started.

    Raises as `build_on_devices` does.
    """
    with contextlib.ExitStack() as stack:
        for runner in runners:
            stack.callback(runner.close)
        pool = stack.enter_context(ThreadPoolExecutor(len(runners)))
        for runner in runners:  # before the pool waits for their calls
            stack.callback(runner.stop)
        crew, origin = start_crew(runners, pool, build)
        progress = stack.enter_context(build.open(origin, rows_from))
        queue = ProblemQueue(build.keys_to_tune(progress.rows), build.deadline)
        progress.flush()
        dispatch = Dispatch(build=build, progress=progress, queue=queue)
        dispatch.run(crew, pool)
        build.failed = queue.failed
        for device, reason in _without_worker(crew, dispatch.gone).items():
            build.leave_out(device, reason)
    return build.report()


def build_model_on_devices(
    model: str,
    *,
    devices: str,
    problem_limit_s: float = PROBLEM_S,
    observer: Observer | None = None,
    **arguments: Any,
) -> BuildReport:
    """Tune the kernels of *model* on all of *devices*, and write the winners to a table.

    *arguments* are those of `warmup.tuning.build.build`, except ``device``, ``dry_run``, ``force``,
    ``retry`` and ``budget``. Problems that can be tuned without the model are distributed as by
    `build_on_devices`; the others are tuned on the first device when those are in the table. The
    report is that of the whole build.

    Raises:
        SettingsError: an argument cannot be used here.
        WarmupError: as `build` and `build_on_devices` do.
    """
    if given := [name for name in REFUSED if arguments.get(name)]:
        raise SettingsError(
            f"a build on several devices has no {shown(', '.join(given))}", "build on one device"
        )
    started = time.monotonic()
    first = parse_devices(devices)[0].name
    # The last build reports the model.
    planned = build(model, device=first, dry_run=True, **arguments)
    assert planned.plan is not None
    ahead: BuildReport | None = None
    keys = [key for key in planned.plan.missing if kind_of(key).rebuild is not None]
    if keys:
        with contextlib.suppress(NothingRecordedError):  # the model asks for all of them
            ahead = build_on_devices(
                as_problems(keys),
                devices=devices,
                out=planned.path,
                problem_limit_s=problem_limit_s,
                observer=observer,
                **{name: arguments[name] for name in _OF_PROBLEMS if name in arguments},
            )
    final = build(model, device=first, observer=observer, **{**arguments, "out": planned.path})
    final = replace(final, seconds=time.monotonic() - started)
    if ahead is None:
        return final
    again = {one.key for one in final.timings}
    return replace(
        final,
        timings=(*(one for one in ahead.timings if one.key not in again), *final.timings),
        not_fused={**ahead.not_fused, **final.not_fused},
        rows_from=united_sources(planned.rows_from, final.rows_from),
        machine=united([ahead.machine, final.machine]),
        stages=summed([ahead.stages, final.stages]),
        devices=ahead.devices,
    )
