"""`build_on_devices`: tunes missed problems on all devices of a host at the same time.

This process holds the queue and the table, and needs no device itself: what it knows of the devices
is what their workers say.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.machine_state import NOT_CHECKED, MachineState, united
from warmup.core.method import Search
from warmup.core.miss_reasons import MissReason
from warmup.core.phases import BuildStage
from warmup.core.rows import Row
from warmup.core.runtime import Runtime, compare_runtimes
from warmup.diagnostics.misses import MissedProblem, read_misses
from warmup.inductor import connect
from warmup.keys.registry import kind_of
from warmup.table.codec import digest_of
from warmup.table.policy import PolicyOptions
from warmup.table.store import read
from warmup.tuning.budget import parse_budget
from warmup.tuning.build import build
from warmup.tuning.devices.host import (
    PROBLEM_S,
    LocalRunner,
    Patience,
    RunnerGoneError,
    RunnerLostError,
    parse_devices,
    runners_of,
)
from warmup.tuning.devices.messages import FinishedProblem, ProblemTask, ReadyWorker, WorkerOrder
from warmup.tuning.from_misses import build_problems, check_built
from warmup.tuning.missed_keys import keys_with_row, missed_keys, share_of
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import NOT_BEGUN, BucketResult, BuildReport, DeviceShare, Observer
from warmup.tuning.rows_from import KnownRows, open_earlier, united_sources
from warmup.tuning.setup import check_out, open_table, seconds_to_wait, watcher_of

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
    """Check that all devices, each with its runtime in *runtimes*, are of one kind.

    Raises:
        SettingsError: two differ; the error names both.
    """
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
    """Return what tells the device of *runtime* from devices of another kind, for people."""
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

    ``numbers`` has the place of every key in the order of the build, from 0; ``failed``, by key,
    why it is not tuned: how its workers were lost, or that it still waited when `time.monotonic`
    reached *deadline*.
    """

    def __init__(self, keys: Iterable[str], deadline: float = math.inf) -> None:
        self._waiting = list(keys)
        self.numbers = {key: number for number, key in enumerate(self._waiting)}
        self._deadline = deadline
        self._lost: dict[str, list[tuple[str, str]]] = {}
        self.failed: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, device: str, others: Collection[str]) -> str | None:
        """Return the next key for *device*; None where what waits is for one of the *others*.

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


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The runners that take part, what each said when it was ready, and why devices do not."""

    runners: list[LocalRunner]
    ready: dict[str, ReadyWorker]
    control_us: dict[str, float]
    left_out: dict[str, str]


def start_crew(runners: Sequence[LocalRunner], pool: ThreadPoolExecutor, watcher: Observer) -> Crew:
    """Start *runners*; return those whose devices are of one kind and comparable.

    Raises:
        SettingsError: the devices are of several kinds.
        BuildError: no worker started, or none on a device whose control problem was timed.
    """
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
    left_out |= {**_device_reasons(runners, gone), **devices_off(control_us, band)}
    takes_part = [each for each in runners if each.name in ready and each.device not in left_out]
    if not takes_part:
        raise _no_device("can be used", left_out)
    complaints = (text for name in ready for text in _named(name, ready[name].complaints))
    watcher.device_looked_at(tuple(dict.fromkeys(complaints)))
    for name, reason in left_out.items():
        watcher.device_left_out(name, reason)
    for runner in runners:
        if runner not in takes_part:
            runner.stop()
    watcher.devices_ready(list(dict.fromkeys(each.device for each in takes_part)), control_us)
    return Crew(runners=takes_part, ready=ready, control_us=control_us, left_out=left_out)


def _device_reasons(runners: Sequence[LocalRunner], gone: Mapping[str, str]) -> dict[str, str]:
    """Return, by device, why none of its workers is left; *gone* has the reason by runner."""
    names: dict[str, list[str]] = {}
    for runner in runners:
        names.setdefault(runner.device, []).append(runner.name)
    return {
        device: "; ".join(dict.fromkeys(gone[name] for name in own))
        for device, own in names.items()
        if gone.keys() >= set(own)
    }


def _no_device(what: str, reasons: Mapping[str, str]) -> BuildError:
    """Return the error that no device *what*, with the reason of each, by its name."""
    said = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return BuildError(f"no device {what}: {said}", "run `warmup doctor`")


def _named(name: str, complaints: Iterable[str]) -> tuple[str, ...]:
    """Return *complaints* with the *name* of the device, where they are about one."""
    return tuple(text if text.startswith(NOT_CHECKED) else f"{name}: {text}" for text in complaints)


@dataclass(kw_only=True)
class Dispatch:
    """Gives each worker problem after problem, and a lost problem to another device.

    Each finished problem is in the table of ``progress``, on disk. Keys of ``again`` are measured
    although they have a row. ``by_device`` counts the problems that each device finished, ``gone``
    has by the name of a worker why it was given up; the other mappings are those of `BuildReport`.
    """

    progress: Progress
    queue: ProblemQueue
    again: Collection[str] = ()
    buckets: list[BucketResult] = field(default_factory=list)
    not_rebuilt: dict[str, str] = field(default_factory=dict)
    not_tuned: dict[str, str] = field(default_factory=dict)
    not_fused: dict[str, str] = field(default_factory=dict)
    stages: dict[BuildStage, float] = field(default_factory=dict)
    by_device: Counter[str] = field(default_factory=Counter)
    gone: dict[str, str] = field(default_factory=dict)
    _sent: dict[str, dict[str, Row]] = field(default_factory=dict)
    _machines: dict[str, MachineState] = field(default_factory=dict)
    _earlier: list[tuple[str, MachineState]] = field(default_factory=list)  # of lost workers

    def run(self, runners: Sequence[LocalRunner], pool: ThreadPoolExecutor) -> None:
        """Run every problem of the queue on *runners*, which have started.

        *pool* has a thread for each. Problems that no worker was left for are in ``queue.failed``.

        Raises:
            TableError: the table cannot be written. Calls may still be under way.
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
                    self._finish(runner, answer)
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

    def machine(self) -> MachineState:
        """Return what disturbed the measurements of all workers."""
        return united(
            replace(state, complaints=_named(name, state.complaints))
            for name, state in (*self._earlier, *self._machines.items())
        )

    def _task_for(self, runner: LocalRunner, key: str) -> ProblemTask:
        """Return the task for *key*, with the rows that *runner* does not have yet."""
        sent, rows = self._sent.setdefault(runner.name, {}), self.progress.rows
        rows.get(key)  # an earlier table's row is taken when it is looked up
        fresh = {name: row for name, row in rows.items() if sent.get(name) is not row}
        sent.update(fresh)
        number, total = self.queue.numbers[key], len(self.queue.numbers)
        self.progress.observer.problem_given(key, runner.device, total)
        return ProblemTask(
            key=key, rows=fresh, is_again=key in self.again, number=number, total=total
        )

    def _finish(self, runner: LocalRunner, finished: FinishedProblem) -> None:
        """Write the rows of *finished* to the table, and keep the rest for the report.

        A row that another problem has measured meanwhile, on the way, stays.
        """
        if (peaks := finished.peaks) is not None:
            self.progress.measured_peaks = lambda: peaks
        measured = self.progress.keys_since(0)
        for tuned in finished.tuned:
            if tuned.key == finished.key or tuned.key not in measured:
                self.progress.save(tuned)
        for key, reason in finished.distrusted.items():
            if key in self.progress.table.rows:
                self.progress.distrust([key], reason)
        for result in finished.buckets:
            self.buckets.append(result)
            self.progress.observer.bucket_finished(result)
        self.not_rebuilt |= finished.not_rebuilt
        self.not_tuned |= finished.not_tuned
        self.not_fused |= finished.not_fused
        for stage, seconds in finished.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        self._machines[runner.name] = finished.machine
        self.by_device[runner.device] += 1

    def _lose(self, runner: LocalRunner, key: str, reason: str) -> None:
        """Let another device take *key* over, and forget what the lost worker of *runner* had."""
        goes_on = self.queue.lose(key, runner.device, reason)
        self._sent.pop(runner.name, None)
        if (state := self._machines.pop(runner.name, None)) is not None:
            self._earlier.append((runner.name, state))
        self.progress.observer.problem_lost(key, runner.device, reason, goes_on=goes_on)


def build_on_devices(
    problems: str | Path | Sequence[MissedProblem],
    *,
    devices: str,
    out: str | Path,
    search: str = Search.DEFAULT,
    force: bool = False,
    wait_for_quiet: float | None = None,
    rows_from: Sequence[str | Path] = (),
    dry_run: bool = False,
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
    if dry_run:
        return build_problems(
            problems,
            out=out,
            device=slots[0].name,
            search=search,
            force=force,
            rows_from=rows_from,
            dry_run=True,
            shard=shard,
            **policy,
        )
    searched = parse_budget(search, None).search
    check_out(Path(out))
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
        missed = read_misses(problems) if isinstance(problems, (str, Path)) else problems
        return build_with(
            runners_of(slots, order, Patience(problem_s=problem_limit_s), observer),
            share_of(missed, shard),
            out=Path(out),
            search=searched,
            force=force,
            rows_from=rows_from,
            seconds=seconds,
            observer=observer,
        )


def build_with(
    runners: Sequence[LocalRunner],
    problems: Sequence[MissedProblem],
    *,
    out: Path,
    search: Search = Search.DEFAULT,
    force: bool = False,
    rows_from: Sequence[str | Path] = (),
    seconds: float | None = None,
    observer: Observer | None = None,
) -> BuildReport:
    """Tune *problems* on *runners*, none of which has started, and add their rows to *out*.

    Once *seconds* have passed no further problem is begun; those that wait are not tuned. The other
    arguments are those of `build_on_devices`, which says what is raised.
    """
    started, watcher = time.monotonic(), observer or Observer()
    missed = missed_keys(problems)
    with ExitStack() as stack:
        for runner in runners:
            stack.callback(runner.close)
        pool = stack.enter_context(ThreadPoolExecutor(len(runners)))
        for runner in runners:  # before the pool waits for their calls
            stack.callback(runner.stop)
        crew = start_crew(runners, pool, watcher)
        origin = crew.ready[crew.runners[0].name]  # those of all are the same
        watcher_of(watcher, origin)
        table, replaces = open_table(out, origin, force=force)
        earlier = open_earlier(
            rows_from,
            table,
            lambda: connect().template_sources(),
            measures_again=force,
            is_dry=False,
        )
        rows = table.rows if earlier is None else KnownRows(table.rows, earlier)
        known = keys_with_row(missed, rows, search, force=force)
        deadline = math.inf if seconds is None else started + seconds
        queue = ProblemQueue((key for key in missed if key not in known), deadline)
        again = frozenset(key for key, is_stale in missed.items() if force or is_stale)
        progress = Progress(
            path=out,
            table=table,
            replaces=replaces,
            observer=watcher,
            can_search=origin.can_search,
            given_up={},
            measured_peaks=lambda: None,
            revisit=Revisit(keys=again, search=search),
            earlier=earlier,
        )
        progress.flush()
        dispatch = Dispatch(progress=progress, queue=queue, again=again)
        dispatch.run(crew.runners, pool)
        left_out = {**crew.left_out, **_device_reasons(crew.runners, dispatch.gone)}
        for name in left_out.keys() - crew.left_out.keys():
            watcher.device_left_out(name, left_out[name])
    # What a worker gave up may have been measured on the way to another problem.
    tuned = progress.keys_since(0)
    not_tuned = {
        key: why for key, why in {**dispatch.not_tuned, **queue.failed}.items() if key not in tuned
    }
    # An error shows the first reasons: those of problems that were begun.
    begun = {key: why for key, why in not_tuned.items() if why != NOT_BEGUN}
    check_built(out, missed, {**dispatch.not_rebuilt, **begun, **not_tuned})
    final = read(out)
    return BuildReport(
        out,
        final,
        digest_of(final),
        tuple(dispatch.buckets),
        progress.measured,
        time.monotonic() - started,
        known,
        dispatch.not_rebuilt,
        not_tuned,
        dispatch.not_fused,
        final.provenance.peaks,
        distrusted=dict(progress.distrusted),
        machine=dispatch.machine(),
        stages=dispatch.stages,
        rows_from=earlier.used(tuned) if earlier else (),
        devices=tuple(
            DeviceShare(
                name=name,
                problems=dispatch.by_device[name],
                control_us=crew.control_us.get(name),
                left_out=left_out.get(name, ""),
            )
            for name in dict.fromkeys(runner.device for runner in runners)
        ),
    )


def build_model_on_devices(
    model: str,
    *,
    devices: str,
    problem_limit_s: float = PROBLEM_S,
    observer: Observer | None = None,
    **arguments: Any,
) -> BuildReport:
    """Tune the kernels of *model* on all of *devices*, and write the winners to a table.

    *arguments* are those of `warmup.tuning.build.build`, except ``device``, ``force``, ``retry``
    and ``budget``. Problems that can be tuned without the model are distributed as by
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
    is_dry = arguments.pop("dry_run", False)
    watcher = observer if is_dry else None  # the last build reports the model again
    planned = build(model, device=first, dry_run=True, observer=watcher, **arguments)
    assert planned.plan is not None
    if is_dry:
        return planned
    ahead: BuildReport | None = None
    # Those that can be rebuilt from the key alone.
    problems = [
        MissedProblem(key, kind.name, MissReason.NOT_IN_TABLE, 1)
        for key in planned.plan.missing
        if (kind := kind_of(key)).rebuild is not None
    ]
    if problems:
        try:
            ahead = build_on_devices(
                problems,
                devices=devices,
                out=planned.path,
                problem_limit_s=problem_limit_s,
                observer=observer,
                **{name: arguments[name] for name in _OF_PROBLEMS if name in arguments},
            )
        except NothingRecordedError:
            ahead = None  # the model asks for all of them
    final = build(model, device=first, observer=observer, **{**arguments, "out": planned.path})
    if ahead is None:
        return replace(final, seconds=time.monotonic() - started)
    again = {one.key for one in final.timings}
    return replace(
        final,
        timings=(*(one for one in ahead.timings if one.key not in again), *final.timings),
        seconds=time.monotonic() - started,
        not_fused={**ahead.not_fused, **final.not_fused},
        rows_from=united_sources(planned.rows_from, final.rows_from),
        machine=united([ahead.machine, final.machine]),
        stages={
            stage: ahead.stages.get(stage, 0.0) + final.stages.get(stage, 0.0)
            for stage in BuildStage
            if stage in ahead.stages or stage in final.stages
        },
        devices=ahead.devices,
    )
