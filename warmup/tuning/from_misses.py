"""`build_problems`: tune exactly what serving missed, without the model.

Each problem is rebuilt as a stand-in, tuned, served from the table and compared with eager. What
cannot be rebuilt is reported with its reason, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from warmup.buckets.bucket import Bucket
from warmup.core.errors import BuildError, ModelError, NothingRecordedError, ProblemError
from warmup.core.method import Search
from warmup.core.rows import Family, MissReason, Tuned, Winner
from warmup.diagnostics.misses import MissedProblem, read_misses
from warmup.keys.gemm import GEMM
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD
from warmup.keys.registry import kind_of
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup
from warmup.table.policy import DEFAULT_MODE, Asked
from warmup.table.store import check_writable, read
from warmup.tuning.destination import open_table
from warmup.tuning.extent import parse_extent
from warmup.tuning.report import SILENT, BucketResult, BuildReport, Observer
from warmup.tuning.session import Build
from warmup.tuning.setup import find_ground

_WITH_MODEL: Final = "run `warmup build --model ...` with this bucket"
_AS_IS: Final = Winner(Family.PAD, "as_is")
_SHOWN: Final = 3


def build_problems(
    problems: str | Path,
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
    observer: Observer | None = None,
) -> BuildReport:
    """Tune the problems of the misses document *problems* and add their rows to the table *out*.

    A problem that the table answers already is left alone, unless *force* is set, its row could not
    be used at serving, or was searched less far than *search*. Each finished problem is on disk
    before the next one starts.

    Raises:
        SettingsError: an argument or the document cannot be used; nothing was written.
        TableError: the table is damaged, of another device, runtime or policy, or not writable.
        NothingRecordedError: no problem could be rebuilt, and there is no table at *out*.
    """
    started = time.monotonic()
    missed = _by_key(read_misses(problems))
    from warmup.measuring.precision import precision_of
    from warmup.models.gemm_module import make_standin
    from warmup.tuning.tuner import make_tuner

    extent = parse_extent(search, None)
    asked = Asked(
        mode=mode,
        backends=backends,
        tolerance=tolerance,
        launch=launch,
        l2=l2,
        fused_top_k=fused_top_k,
    )
    ground = find_ground(device, asked)
    path = Path(out)
    check_writable(path)
    table, replaces = open_table(path, ground.runtime, ground.policy, force=force)
    known = tuple(
        key
        for key, redo in missed.items()
        if (row := table.rows.get(key)) is not None and not (force or redo)
        if not row.evidence.search.is_narrower_than(extent.search)
    )
    wanted = [key for key in missed if key not in known]
    results: list[BucketResult] = []
    tuned: list[Tuned] = []
    refused: dict[str, str] = {}
    watcher = observer or SILENT
    with make_tuner(ground.policy, ground.device) as tuner:
        watcher.device_looked_at(tuner.look())
        for index, key in enumerate(wanted):
            try:
                _check_rebuildable(key)
                model, bucket = make_standin(key, ground.device)
                work = _OneProblem(
                    ground.inductor,
                    model,
                    (),
                    ground.device,
                    None,
                    path,
                    table,
                    force or missed[key],
                    replaces,
                    watcher,
                    tuner,
                    tuned,
                    search=extent.search,
                    wanted=key,
                )
                try:
                    with precision_of(key, ground.device):
                        results.append(work.run(bucket, index, len(wanted)))
                finally:
                    table, replaces = work.table, work.replaces
            except (BuildError, ModelError, ProblemError) as error:
                refused[key] = str(error)
        watcher.device_looked_at(tuner.look(again=True))
    if not path.exists():
        said = "; ".join(f"{key}: {reason}" for key, reason in list(refused.items())[:_SHOWN])
        raise NothingRecordedError(
            f"none of {len(missed)} problems could be rebuilt, and there is no table at {path}",
            said,
        )
    final = read(path)
    return BuildReport(
        path,
        final,
        digest_of(final),
        tuple(results),
        tuple(tuned),
        time.monotonic() - started,
        known,
        refused,
        dict(tuner.not_tuned),
        dict(tuner.not_fused),
        tuner.known_peaks,
    )


def _by_key(problems: Iterable[MissedProblem]) -> dict[str, bool]:
    """Return each key once, and whether its row is to be tuned again."""
    found: dict[str, bool] = {}
    for problem in problems:
        found[problem.key] = found.get(problem.key, False) or problem.is_stale
    return found


def _check_rebuildable(key: str) -> None:
    kind = kind_of(key)
    if kind in (LAUNCH, PAD):
        raise ProblemError(f"a {kind.name} problem needs the model: {_WITH_MODEL}")
    kind.check(key)


@dataclass
class _OneProblem(Build):
    """A build of one stand-in, in which only the key *wanted* counts."""

    wanted: str = ""
    others: list[str] = field(default_factory=list)

    def run(self, bucket: Bucket, index: int, total: int) -> BucketResult:
        """Tune the stand-in, serve it from the table and compare it with eager.

        Raises:
            BuildError: it failed, or did not ask for the key.
        """
        result = self.run_bucket(bucket, index, total)
        if result.keys or self.wanted in self.tuner.not_tuned:
            return result
        if self.others:
            raise BuildError(f"its stand-in asks for another key: {self.others[0]}")
        raise BuildError("its stand-in leaves inductor nothing to choose")

    @property
    def tolerance(self) -> Mapping[str, float]:
        """As the policy says for the GEMM's dtype, whatever dtype the epilogue ends in."""
        accepted = super().tolerance
        return dict.fromkeys(accepted, accepted[GEMM.ingredients(self.wanted)["dtype"]])

    @property
    def make_lookup(self) -> Callable[..., Lookup]:
        """What makes a lookup that answers and reports *wanted* alone."""
        return partial(_OneLookup, wanted=self.wanted, others=self.others)


@dataclass
class _OneLookup(Lookup):
    """A lookup of which one key is wanted.

    Another GEMM key is noted, and nothing is measured from there on. Whatever else inductor asks
    about a stand-in is not what serving missed, and leaves no trace.
    """

    wanted: str = ""
    others: list[str] = field(default_factory=list)

    @property
    def tunes(self) -> bool:
        return super().tunes and not self.others

    def find(self, key: str) -> Winner | MissReason:
        kind = kind_of(key)
        if kind is PAD:
            return _AS_IS  # padded, it would be another GEMM
        if kind is GEMM and key != self.wanted:
            self.others.append(key)
        return super().find(key)

    def hit(self, key: str, winner: Winner) -> None:
        if key == self.wanted:
            super().hit(key, winner)

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        if key == self.wanted:
            super().miss(key, reason, fallback)

    def contest(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        del key, calls  # about a launch config of the stand-in, which nobody will ask for
        return library
