"""`build_problems`: tunes the problems that serving missed, without the model.

Each problem is rebuilt as a small module, tuned, served from the table and its output judged. A
problem that cannot be rebuilt is reported with its reason, and the others are tuned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.core.errors import BuildError, ModelError, NothingRecordedError, ProblemError
from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.diagnostics.misses import MissedProblem, read_misses
from warmup.table.codec import digest_of
from warmup.table.policy import DEFAULT_MODE, PolicyOptions
from warmup.table.store import read
from warmup.tuning.budget import SearchBudget, parse_budget
from warmup.tuning.dry_run import plan_keys
from warmup.tuning.missed_keys import keys_with_row, missed_keys, share_of
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.rebuilt_problem import tune_rebuilt
from warmup.tuning.report import BucketResult, BuildReport, Observer
from warmup.tuning.rows_from import KnownRows, open_earlier
from warmup.tuning.setup import (
    BuildSetup,
    check_out,
    find_setup,
    open_table,
    seconds_to_wait,
    watcher_of,
)

if TYPE_CHECKING:
    from warmup.keys.question import RegionQuestion
    from warmup.tuning.tuner import Tuner

_SHOWN_PROBLEMS: Final = 3


def build_problems(
    problems: str | Path | Sequence[MissedProblem],
    *,
    out: str | Path,
    device: str = "auto",
    mode: str = DEFAULT_MODE,
    backends: str | None = None,
    tolerance: float | None = None,
    launch: str | None = None,
    l2: str | None = None,
    fused_top_k: int | None = None,
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
) -> BuildReport:
    """Tune the problems of the misses document *problems* and add their rows to the table *out*.

    *problems* may be the problems themselves. With *imported*, which has the configs of each key,
    only these and the library's kernels are tried, whatever *search* says.

    A problem with a row is not tuned again, unless *force* is set, *again* has its key, its row
    could not be used at serving, or was searched less far than *search*. A key of *again* that
    cannot be rebuilt keeps its row. Problems that *regions* describe are measured in their regions
    instead of being rebuilt. Each finished problem is on disk before the next one starts.
    Once *seconds* have passed no further problem is begun; those that are left are in no list of
    the report. With *shard*, such as ``2/8``, the problems of that share are tuned: see
    `warmup.tuning.missed_keys.share_of`. *wait_for_quiet* and *rows_from* are those of
    `warmup.tuning.build.build`. With *dry_run* the report has a plan instead, nothing is done.

    Raises:
        SettingsError: an argument or the document cannot be used; nothing was written.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*; or the
            share is empty.
    """
    started = time.monotonic()
    if isinstance(problems, (str, Path)):
        problems = read_misses(problems)
    problems = share_of(problems, shard)
    described = {question.key for question in regions}
    missed = missed_keys(problems) | dict.fromkeys(again, True)
    missed = {key: is_stale for key, is_stale in missed.items() if key not in described}
    from warmup.tuning.tuner import make_tuner

    search_budget = parse_budget(search, None)
    if imported is not None:
        search_budget = SearchBudget(Search.IMPORTED)
    asked = PolicyOptions(
        mode=mode,
        backends=backends,
        tolerance=tolerance,
        launch=launch,
        l2=l2,
        fused_top_k=fused_top_k,
    )
    path = Path(out)
    if not dry_run:
        check_out(path)
    setup = find_setup(device, asked)
    table, replaces = open_table(path, setup, force=force, is_read_only=dry_run)
    earlier = open_earlier(
        rows_from,
        table,
        setup.inductor.template_sources,
        measures_again=force,
        is_dry=dry_run,
    )
    rows = table.rows if earlier is None else KnownRows(table.rows, earlier)
    known = keys_with_row(missed, rows, search_budget.search, force=force)
    wanted = [key for key in missed if key not in known]
    if dry_run:
        plan = plan_keys(known, wanted)
        elapsed = time.monotonic() - started
        used = earlier.used() if earlier else ()
        return BuildReport(
            path, table, digest_of(table), (), (), elapsed, known, plan=plan, rows_from=used
        )
    results: list[BucketResult] = []
    watcher = watcher_of(observer, setup)
    wait_s = seconds_to_wait(wait_for_quiet)
    with make_tuner(setup.policy, setup.device, started) as tuner:
        tuner.region_questions.is_used = True  # a rebuilt module is compiled again
        tuner.watch.start(wait_s, watcher.waiting_started)
        progress = Progress(
            path=path,
            table=table,
            replaces=replaces,
            observer=watcher,
            can_search=setup.can_search,
            given_up=tuner.rows.not_tuned,
            measured_peaks=tuner.bounds.peaks,
            revisit=Revisit(
                keys=frozenset(key for key, is_stale in missed.items() if force or is_stale),
                search=search_budget.search,
            ),
            earlier=earlier,
        )
        progress.flush()
        watcher.device_looked_at(tuner.watch.complaints())
        if regions:
            from warmup.tuning.recorded_regions import measure_recorded

            measure_recorded(regions, setup, progress, tuner)
        not_rebuilt = _tune_problems(
            wanted,
            results,
            setup,
            progress,
            tuner,
            imported=imported or {},
            again=again,
            deadline=math.inf if seconds is None else started + seconds,
        )
        machine, stages = tuner.watch.state(), tuner.clock.take()
        watcher.device_looked_at(machine.complaints)
    check_built(path, missed, not_rebuilt)
    final = read(path)
    return BuildReport(
        path,
        final,
        digest_of(final),
        tuple(results),
        progress.measured,
        time.monotonic() - started,
        known,
        not_rebuilt,
        dict(tuner.rows.not_tuned),
        dict(tuner.rows.not_fused),
        tuner.bounds.known,
        distrusted=dict(progress.distrusted),
        machine=machine,
        stages=stages,
        rows_from=earlier.used(progress.keys_since(0)) if earlier else (),
    )


def _tune_problems(
    wanted: Sequence[str],
    results: list[BucketResult],
    setup: BuildSetup,
    progress: Progress,
    tuner: Tuner,
    *,
    imported: Mapping[str, Sequence[Winner]],
    again: Collection[str],
    deadline: float,
) -> dict[str, str]:
    """Rebuild and tune each key of *wanted*, and add its result to *results*.

    Return, by key, why a problem could not be rebuilt; a key of *again* keeps its row then. None
    is begun after *deadline*.
    """
    from warmup.models.rebuilt import rebuild

    not_rebuilt: dict[str, str] = {}
    for index, key in enumerate(wanted):
        if time.monotonic() >= deadline:
            break
        try:
            rebuilt = rebuild(key, setup.device)
            number, named = (index, len(wanted)), imported.get(key, ())
            results.append(
                tune_rebuilt(key, rebuilt, setup, progress, tuner, number=number, named=named)
            )
        except (BuildError, ModelError, ProblemError) as error:
            if key in again and key in progress.rows:
                continue
            not_rebuilt[key] = str(error)
    return not_rebuilt


def check_built(path: Path, missed: Collection[str], reasons: Mapping[str, str]) -> None:
    """Check that there is a table at *path* after a build of the keys *missed*.

    *reasons* says, by key, why a problem has no row.

    Raises:
        NothingRecordedError: there is none.
    """
    if not path.exists():
        shown = "; ".join(f"{key}: {why}" for key, why in list(reasons.items())[:_SHOWN_PROBLEMS])
        raise NothingRecordedError(
            f"none of {len(missed)} problems could be rebuilt, and there is no table at {path}",
            shown,
        )
