"""`build_problems`: tunes the problems that serving missed, without the model.

Each problem is rebuilt as a small module, tuned, served from the table and its output judged. A
problem that cannot be rebuilt is reported with its reason, and the others are tuned.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.core.device import MachineState, united
from warmup.core.errors import (
    BuildError,
    MissReason,
    ModelError,
    NothingRecordedError,
    ProblemError,
    SettingsError,
)
from warmup.core.events import Hit, HookEvent, Missed
from warmup.core.method import Search, SearchCounts
from warmup.core.phases import BuildStage, StageSeconds
from warmup.core.rows import Family, Row, Winner
from warmup.core.text import counted, shown
from warmup.keys.kind import Problem
from warmup.keys.question import GemmQuestion, Question, RegionQuestion, SearchQuestion
from warmup.keys.registry import kind_of
from warmup.serving.audit import MissedProblem, read_misses
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup
from warmup.table.schema import PolicyOptions
from warmup.table.store import read_folded
from warmup.tuning.device_host import FinishedProblem
from warmup.tuning.progress import Progress, Revisit, parse_budget
from warmup.tuning.report import (
    NOT_BEGUN,
    BucketResult,
    BuildReport,
    DeviceShare,
    Observer,
    open_earlier,
)
from warmup.tuning.setup import (
    BuildSetup,
    TableOrigin,
    check_out,
    find_setup,
    open_table,
    seconds_to_wait,
    watcher_of,
)

if TYPE_CHECKING:
    from warmup.keys.question import RegionQuestion
    from warmup.tuning.tuner import Tuner


# `OneKeyLookup`: a lookup for a module that was rebuilt from one key.


@dataclass
class OneKeyLookup(Lookup):
    """A lookup that answers and reports the key *wanted* alone.

    After a question for another key of the same kind, which goes to *others*, nothing is measured:
    the module was rebuilt wrongly. Serving did not miss the module's questions of other kinds: they
    get a neutral winner and are not reported. Where the ways of *wanted* are compiled to be timed,
    each with a GEMM of its own, the GEMMs are tuned too, so that the ways are timed as they run.
    With the search ``imported`` the candidates are the kernels *named* and the library's.
    """

    wanted: str = ""
    others: list[str] = field(default_factory=list)
    named: Sequence[Winner] = ()

    def _wants(self, key: str) -> bool:
        has_ways = kind_of(self.wanted).neutral is not None
        return key == self.wanted or (has_ways and kind_of(key).is_searchable)

    def neighbours(self, problem: Problem) -> Sequence[Winner]:
        return self.named if self.search is Search.IMPORTED else super().neighbours(problem)

    def find(self, problem: Problem) -> Winner | MissReason:
        key, kind = problem.key, kind_of(problem.key)
        if kind is kind_of(self.wanted):
            if key != self.wanted and key not in self.rows:  # a region's rows are its variants
                self.others.append(key)
        elif kind.neutral is not None:
            return kind.neutral
        return super().find(problem)

    def emit(self, event: HookEvent) -> None:
        if isinstance(event, Hit | Missed):
            is_own = isinstance(event, Hit) and event.key in self.rows
            is_own = is_own and kind_of(event.key) is kind_of(self.wanted)
            if not (is_own or self._wants(event.key)):
                return
        super().emit(event)

    def measure(self, question: Question) -> Winner | None:
        key = question.problem.key
        if isinstance(question, SearchQuestion):
            is_wanted = key == self.wanted or not question.makes_row
        else:  # of other keys serving never asks
            is_wanted = isinstance(question, RegionQuestion) or self._wants(key)
        if self.others or not is_wanted:
            return question.library
        if self.search is Search.IMPORTED and isinstance(question, GemmQuestion):
            kept = tuple(
                one
                for one in question.candidates
                if one.winner.family is Family.EXTERN
                or one.winner == question.library
                or any(named.names(one.winner) for named in self.named)
            )
            counts = SearchCounts(search=Search.IMPORTED, listed=len(kept))
            question = replace(question, candidates=kept, searched=counts)
        return super().measure(question)


# `MissedBuild`: a build of the problems of a misses document: its keys, its table, its report.

_SHOWN_PROBLEMS: Final = 3
_SHARD: Final = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


def parse_shard(text: str) -> tuple[int, int]:
    """Return the numbers I and N of a share written ``I/N``.

    Raises:
        SettingsError: *text* has another form, or I is larger than N.
    """
    match = _SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise SettingsError(
            f"--shard {shown(text)!r} is no share of the problems",
            "write I/N with I from 1 to N, such as 2/8",
        )
    return int(match[1]), int(match[2])


def share_of(problems: Sequence[MissedProblem], shard: str | None) -> Sequence[MissedProblem]:
    """Return the share *shard* of *problems*, such as ``2/8``; all of them for None.

    The keys are ordered by a hash, and each N-th one belongs to the share: the N shares are
    disjoint, have all keys together, differ by one key at most, and are the same on every machine
    and for every order of the document.

    Raises:
        SettingsError: *shard* is not of the form ``I/N``.
        NothingRecordedError: the share has no problem, since N is larger than their number.
    """
    if shard is None:
        return problems
    number, count = parse_shard(shard)
    keys = sorted({each.key for each in problems}, key=_digest)
    chosen = set(keys[number - 1 :: count])
    if not chosen:
        problem_count = counted(len(keys), "problem")
        raise NothingRecordedError(
            f"share {shard} is empty: the document has {problem_count}", "use fewer shares"
        )
    return [each for each in problems if each.key in chosen]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).digest()


def as_problems(keys: Iterable[str]) -> list[MissedProblem]:
    """Return *keys* as problems that no table has a row for."""
    return [MissedProblem(key, kind_of(key).name, MissReason.NOT_IN_TABLE, 1) for key in keys]


@dataclass(kw_only=True)
class MissedBuild:
    """A build of missed problems, by this process or several: its table on disk, and its report.

    ``missed`` are its keys with whether their row could not be used, and ``known`` those that had a
    row. After ``deadline`` no problem is begun. ``shares`` has what each of several devices did,
    ``machines`` what disturbed each process, and ``failed``, by key, why a problem was given up.
    """

    path: Path
    missed: dict[str, bool]
    search: Search
    started: float
    deadline: float
    force: bool = False
    is_dry: bool = False
    observer: Observer = field(default_factory=Observer)
    known: tuple[str, ...] = ()
    progress: Progress | None = None
    results: list[FinishedProblem] = field(default_factory=list)
    shares: dict[str, DeviceShare] = field(default_factory=dict)
    machines: dict[tuple[str, int], MachineState] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def keys_to_tune(self, rows: Mapping[str, Row]) -> list[str]:
        """Return the keys to tune; the others, which a row of *rows* answers, are ``known`` then.

        A row answers nothing that could not be used at serving, is not trusted, or was searched
        less far than ``search``; with ``force`` none does.
        """
        again = self.again
        known = {
            key: row
            for key in self.missed
            if (row := rows.get(key)) is not None and key not in again
            if row.untrusted is None
            if not row.evidence.search.is_narrower_than(self.search)
        }
        self.known = tuple(known)
        return [key for key in self.missed if key not in known]

    @property
    def again(self) -> frozenset[str]:
        """The keys that are measured although they may have a row."""
        return frozenset(key for key, is_stale in self.missed.items() if self.force or is_stale)

    def open(self, origin: TableOrigin, rows_from: Sequence[str | Path] = ()) -> Progress:
        """Return the progress of this build, whose rows are measured as by *origin*.

        Raises:
            TableError: the table, or one of *rows_from*, cannot be used.
        """
        from warmup.inductor import connect

        table, replaces = open_table(self.path, origin, force=self.force, is_read_only=self.is_dry)
        self.progress = Progress(
            path=self.path,
            table=table,
            replaces=replaces,
            observer=watcher_of(self.observer, origin),
            revisit=Revisit(keys=self.again, search=self.search),
            earlier=open_earlier(
                *(rows_from, table, lambda: connect().template_sources()),
                measures_again=self.force,
                is_dry=self.is_dry,
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
        tuned = {one.key for one in timings}
        not_rebuilt = _joined(each.not_rebuilt for each in self.results)
        # What a worker gave up may have been measured on the way to another problem.
        given_up = _joined([*(each.not_tuned for each in self.results), self.failed])
        not_tuned = {key: why for key, why in given_up.items() if key not in tuned}
        # An error shows the first reasons: those of problems that were begun.
        begun = {key: why for key, why in not_tuned.items() if why != NOT_BEGUN}
        if not self.path.exists():
            reasons = {**not_rebuilt, **begun, **not_tuned}.items()
            raise NothingRecordedError(
                f"none of {len(self.missed)} problems could be rebuilt, and there is no table at "
                f"{self.path}",
                "; ".join(f"{key}: {why}" for key, why in islice(reasons, _SHOWN_PROBLEMS)),
            )
        final = read_folded(self.path)
        return BuildReport(
            self.path,
            final,
            digest_of(final),
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


def summed(parts: Iterable[StageSeconds]) -> dict[BuildStage, float]:
    """Return the seconds of all *parts* of a build, by stage."""
    seconds = dict[BuildStage, float]()
    for stage, spent in (item for part in parts for item in part.items()):
        seconds[stage] = seconds.get(stage, 0.0) + spent
    return seconds


def begin_build(
    problems: str | Path | Sequence[MissedProblem],
    out: str | Path,
    *,
    shard: str | None = None,
    search: str = Search.DEFAULT,
    force: bool = False,
    is_dry: bool = False,
    seconds: float | None = None,
    observer: Observer | None = None,
) -> MissedBuild:
    """Return the build of the share *shard* of *problems* into *out*; nothing is tuned yet.

    Raises:
        SettingsError: an argument or the document cannot be used.
        TableWriteError: the table cannot be written.
        NothingRecordedError: the share is empty.
    """
    started, searched = time.monotonic(), parse_budget(search, None).search
    every = read_misses(problems) if isinstance(problems, (str, Path)) else problems
    missed: dict[str, bool] = {}
    for problem in share_of(every, shard):
        missed[problem.key] = missed.get(problem.key, False) or problem.is_stale
    if not is_dry:
        check_out(Path(out))
    return MissedBuild(
        path=Path(out),
        missed=missed,
        search=searched,
        started=started,
        deadline=math.inf if seconds is None else started + seconds,
        force=force,
        is_dry=is_dry,
        observer=observer or Observer(),
    )


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
    `warmup.tuning.problems.share_of`. *wait_for_quiet* and *rows_from* are those of
    `warmup.tuning.build.build`. With *dry_run* the report has a plan instead, nothing is done.

    Raises:
        SettingsError: an argument or the document cannot be used; nothing was written.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*; or the
            share is empty.
    """
    from warmup.tuning.session import plan_keys
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
    with progress, make_tuner(setup.policy, setup.device, build.started) as tuner:
        tuner.watch.start(seconds_to_wait(wait_for_quiet), watcher.waiting_started)
        measure_with(tuner, setup, progress)
        progress.flush()
        watcher.device_looked_at(tuner.watch.remarks())
        if regions:
            from warmup.tuning.recorder import measure_recorded

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
    from warmup.tuning.bucket_compiler import BucketCompiler
    from warmup.tuning.session import Session

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
