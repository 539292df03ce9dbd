"""`build_on_devices`: tunes missed problems on all devices of a host at the same time.

This process holds the queue and the table, and needs no device itself: what it knows of the devices
is what their workers say.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from warmup.core.method import Search
from warmup.diagnostics.misses import MissedProblem, read_misses
from warmup.table.codec import digest_of
from warmup.table.policy import DEFAULT_MODE, PolicyOptions
from warmup.table.store import read
from warmup.tuning.budget import parse_budget
from warmup.tuning.devices.build_results import BuildResults
from warmup.tuning.devices.crew import device_reasons, start_crew
from warmup.tuning.devices.dispatch import run_queue
from warmup.tuning.devices.host_runners import runners_of
from warmup.tuning.devices.local_runner import PROBLEM_S, Patience
from warmup.tuning.devices.messages import WorkerOrder
from warmup.tuning.devices.names import parse_devices
from warmup.tuning.devices.problem_queue import ProblemQueue
from warmup.tuning.devices.runner import Runner
from warmup.tuning.from_misses import build_problems, check_built
from warmup.tuning.missed_keys import keys_with_row, missed_keys, share_of
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import NOT_BEGUN, BuildReport, DeviceShare, Observer
from warmup.tuning.rows_from import KnownRows, open_earlier
from warmup.tuning.setup import check_out, open_table, refuse_imported, seconds_to_wait, watcher_of


def build_on_devices(
    problems: str | Path | Sequence[MissedProblem],
    *,
    devices: str,
    out: str | Path,
    mode: str = DEFAULT_MODE,
    backends: str | None = None,
    tolerance: float | None = None,
    launch: str | None = None,
    l2: str | None = None,
    fused_top_k: int | None = None,
    search: str = Search.DEFAULT,
    force: bool = False,
    wait_for_quiet: float | None = None,
    rows_from: Sequence[str | Path] = (),
    dry_run: bool = False,
    shard: str | None = None,
    problem_limit_s: float = PROBLEM_S,
    seconds: float | None = None,
    observer: Observer | None = None,
) -> BuildReport:
    """Tune the problems of the misses document *problems* on all of *devices*, into *out*.

    *out* is a table. *devices* are names, ``cuda:0,cuda:1``, or ``all``. Which problems are tuned,
    and what the other arguments mean, is as in `build_problems`. A problem whose worker
    dies, hangs, takes longer than *problem_limit_s* or runs out of memory is tuned on another
    device, and reported as not tuned when that is lost too. Once *seconds* have passed no further
    problem is begun; those that wait are not tuned, for `NOT_BEGUN`.

    Raises:
        SettingsError: an argument cannot be used, or the devices are of several kinds.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
        BuildError: no device started.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*; or the
            share is empty.
    """
    slots = parse_devices(devices)
    asked = PolicyOptions(
        mode=mode,
        backends=backends,
        tolerance=tolerance,
        launch=launch,
        l2=l2,
        fused_top_k=fused_top_k,
    )
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
            **asdict(asked),
        )
    refuse_imported(search)
    check_out(Path(out))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="warmup-devices-"))
        order = WorkerOrder(
            device="",
            folder=folder,
            turn="",
            parent=os.getpid(),
            policy=asked,
            search=search,
            wait_s=seconds_to_wait(wait_for_quiet),
        )
        runners = runners_of(slots, order, Patience(problem_s=problem_limit_s), observer)
        return build_with(
            runners,
            share_of(
                read_misses(problems) if isinstance(problems, (str, Path)) else problems, shard
            ),
            out=Path(out),
            search=parse_budget(search, None).search,
            force=force,
            rows_from=rows_from,
            seconds=seconds,
            observer=observer,
        )


def build_with(
    runners: Sequence[Runner],
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
        origin = crew.origin
        watcher_of(watcher, origin)
        table, replaces = open_table(out, origin, force=force)
        earlier = open_earlier(
            rows_from, table, _template_sources, measures_again=force, is_dry=False
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
        results = BuildResults(progress=progress, queue=queue, again=again)
        gone = run_queue(queue, crew.runners, pool, results)
        left_out = {**crew.left_out, **device_reasons(crew.runners, gone)}
        for name in left_out.keys() - crew.left_out.keys():
            watcher.device_left_out(name, left_out[name])
    # What a worker gave up may have been measured on the way to another problem.
    tuned = progress.keys_since(0)
    not_tuned = {
        key: why for key, why in {**results.not_tuned, **queue.failed}.items() if key not in tuned
    }
    # An error shows the first reasons: those of problems that were begun.
    begun = {key: why for key, why in not_tuned.items() if why != NOT_BEGUN}
    check_built(out, missed, {**results.not_rebuilt, **begun, **not_tuned})
    final = read(out)
    return BuildReport(
        out,
        final,
        digest_of(final),
        tuple(results.buckets),
        progress.measured,
        time.monotonic() - started,
        known,
        results.not_rebuilt,
        not_tuned,
        results.not_fused,
        final.provenance.peaks,
        distrusted=dict(progress.distrusted),
        machine=results.machine(),
        stages=results.stages,
        rows_from=earlier.used(tuned) if earlier else (),
        devices=tuple(
            DeviceShare(
                name=name,
                problems=results.by_device[name],
                control_us=crew.control_us.get(name),
                left_out=left_out.get(name, ""),
            )
            for name in dict.fromkeys(runner.device for runner in runners)
        ),
    )


def _template_sources() -> dict[str, str]:
    from warmup.inductor import connect

    return dict(connect().template_sources())
