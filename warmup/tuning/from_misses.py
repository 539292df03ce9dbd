"""`build_problems`: tunes the problems that serving missed, without the model.

Each problem is rebuilt as a small module, tuned, served from the table and its output judged. A
problem that cannot be rebuilt is reported with its reason, and the others are tuned.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmup.core.errors import BuildError, ModelError, ProblemError
from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.diagnostics.misses import MissedProblem
from warmup.table.codec import digest_of
from warmup.table.policy import PolicyOptions
from warmup.tuning.bucket_compiler import BucketCompiler
from warmup.tuning.devices.host import FinishedProblem
from warmup.tuning.dry_run import plan_keys
from warmup.tuning.missed_build import begin_build
from warmup.tuning.one_key import OneKeyLookup
from warmup.tuning.progress import Progress
from warmup.tuning.report import BucketResult, BuildReport, Observer
from warmup.tuning.session import Session
from warmup.tuning.setup import BuildSetup, find_setup, seconds_to_wait

if TYPE_CHECKING:
    from warmup.keys.question import RegionQuestion
    from warmup.tuning.tuner import Tuner


def build_problems(
    problems: str | Path | Sequence[MissedProblem],
    *,
    out: str | Path,
    device: str = "auto",
    search: str = Search.DEFAULT,
    force: bool = False,
    again: Collection[str] = (),
    imported: Mapping[str, Sequence[Winner]] | None = None,
    regions: Sequence[RegionQuestion] = (),
    wait_for_quiet: float | None = None,
    rows_from: Sequence[str | Path] = (),
    dry_run: bool = False,
    shard: str | None = None,
    seconds: float | None = None,
    observer: Observer | None = None,
    **policy: Any,
) -> BuildReport:
    """Tune the problems of the misses document *problems* and add their rows to the table *out*.

    *problems* may be the problems themselves; *policy* has the fields of `PolicyOptions`. With
    *imported*, which has the configs of each key, only these and the library's kernels are tried,
    whatever *search* says.

    A problem with a row is not tuned again, unless *force* is set, *again* has its key, its row
    could not be used at serving, or was searched less far than *search*. A key of *again* that
    cannot be rebuilt keeps its row. Problems that *regions* describe are measured in their regions
    instead of being rebuilt. Each finished problem is on disk before the next one starts.
    Once *seconds* have passed no further problem is begun; those that are left are in no list of
    the report. With *shard*, such as ``2/8``, the problems of that share are tuned: see
    `warmup.tuning.missed_build.share_of`. *wait_for_quiet* and *rows_from* are those of
    `warmup.tuning.build.build`. With *dry_run* the report has a plan instead, nothing is done.

    Raises:
        SettingsError: an argument or the document cannot be used; nothing was written.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*; or the
            share is empty.
    """
    from warmup.tuning.tuner import make_tuner

    build = begin_build(
        *(problems, out),
        shard=shard,
        search=search,
        force=force,
        is_dry=dry_run,
        seconds=seconds,
        observer=observer,
    )
    described = {question.key for question in regions}
    missed = build.missed | dict.fromkeys(again, True)
    build.missed = {key: is_stale for key, is_stale in missed.items() if key not in described}
    if imported is not None:
        build.search = Search.IMPORTED
    setup = find_setup(device, PolicyOptions(**policy))
    progress = build.open(setup, rows_from)
    wanted = build.keys_to_tune(progress.rows)
    if dry_run:
        table, earlier = progress.table, progress.earlier
        return BuildReport(
            build.path,
            table,
            digest_of(table),
            (),
            (),
            time.monotonic() - build.started,
            build.known,
            plan=plan_keys(build.known, wanted),
            rows_from=earlier.used() if earlier else (),
        )
    watcher = build.observer
    with make_tuner(setup.policy, setup.device, build.started) as tuner:
        tuner.watch.start(seconds_to_wait(wait_for_quiet), watcher.waiting_started)
        measure_with(tuner, setup, progress)
        progress.flush()
        watcher.device_looked_at(tuner.watch.remarks())
        if regions:
            from warmup.tuning.recorded_regions import measure_recorded

            measure_recorded(regions, setup, progress, tuner)
        buckets, not_rebuilt = _tune_problems(
            wanted,
            setup,
            progress,
            tuner,
            imported=imported or {},
            again=again,
            deadline=build.deadline,
        )
        machine = build.machines[str(setup.device), 0] = tuner.watch.state()
        build.results.append(
            FinishedProblem(
                buckets=tuple(buckets),
                not_rebuilt=not_rebuilt,
                not_tuned=dict(tuner.rows.not_tuned),
                not_fused=dict(tuner.rows.not_fused),
                distrusted=dict(progress.distrusted),
                stages=tuner.clock.take(),
            )
        )
        watcher.device_looked_at((*machine.complaints, *machine.notes))
    return replace(build.report(), peaks=tuner.bounds.known)


def _tune_problems(
    wanted: Sequence[str],
    setup: BuildSetup,
    progress: Progress,
    tuner: Tuner,
    *,
    imported: Mapping[str, Sequence[Winner]],
    again: Collection[str],
    deadline: float,
) -> tuple[list[BucketResult], dict[str, str]]:
    """Rebuild and tune each key of *wanted*; return the results, and why others could not be.

    A key of *again* that cannot be rebuilt keeps its row. None is begun after *deadline*.
    """
    results, not_rebuilt = list[BucketResult](), dict[str, str]()
    for index, key in enumerate(wanted):
        if time.monotonic() >= deadline:
            break
        try:
            number, named = (index, len(wanted)), imported.get(key, ())
            results.append(tune_rebuilt(key, setup, progress, tuner, number=number, named=named))
        except (BuildError, ModelError, ProblemError) as error:
            if key in again and key in progress.rows:
                continue
            not_rebuilt[key] = str(error)
    return results, not_rebuilt


def measure_with(tuner: Tuner, setup: BuildSetup, progress: Progress) -> None:
    """Let *tuner* measure the rebuilt problems of *progress* on the device of *setup*."""
    tuner.region_questions.is_used = True  # a rebuilt module is compiled again
    progress.can_search, progress.given_up = setup.can_search, tuner.rows.not_tuned
    progress.measured_peaks = tuner.bounds.peaks


def tune_rebuilt(
    key: str,
    setup: BuildSetup,
    progress: Progress,
    tuner: Tuner,
    *,
    number: tuple[int, int] = (0, 1),
    named: Sequence[Winner] = (),
) -> BucketResult:
    """Rebuild the module of *key*, tune it, serve it from the table and judge its output.

    *named* are the kernels to measure beside the library's, for the search ``imported``.

    Raises:
        ProblemError, ModelError: the module cannot be rebuilt.
        BuildError: compiling failed, or the module did not ask for *key*.
    """
    from warmup.models.rebuilt import rebuild

    rebuilt = rebuild(key, setup.device)
    others: list[str] = []
    compiler = BucketCompiler(
        setup=setup,
        model=rebuilt.model,
        progress=progress,
        tuner=tuner,
        make_lookup=partial(OneKeyLookup, wanted=key, others=others, named=named),
        is_rebuilt=True,
    )
    accepted = progress.table.policy.tolerance
    tolerance = dict.fromkeys(accepted, accepted[rebuilt.dtype])  # an epilogue may end in a cast
    session = Session(compiler=compiler, tolerance=tolerance)
    with rebuilt.settings():
        result = session.run_bucket(rebuilt.bucket, *number)
    if key in {*result.keys, *tuner.rows.not_tuned, *progress.distrusted}:
        return result
    if others:
        raise BuildError(f"the rebuilt module asks for another key: {others[0]}")
    raise BuildError("the rebuilt module leaves inductor nothing to choose")
