"""`MissedBuild`: a build of the problems of a misses document: its keys, its table, its report."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from warmup.core.counted import counted
from warmup.core.error_text import shown
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.core.machine_state import MachineState, united
from warmup.core.method import Search
from warmup.core.miss_reasons import MissReason
from warmup.core.phases import BuildStage, StageSeconds
from warmup.core.rows import Row
from warmup.diagnostics.misses import MissedProblem, read_misses
from warmup.inductor import connect
from warmup.keys.registry import kind_of
from warmup.table.codec import digest_of
from warmup.table.store import read
from warmup.tuning.budget import parse_budget
from warmup.tuning.devices.host import FinishedProblem
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import NOT_BEGUN, BuildReport, DeviceShare, Observer
from warmup.tuning.rows_from import open_earlier
from warmup.tuning.setup import TableOrigin, check_out, open_table, watcher_of

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
        final = read(self.path)
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
