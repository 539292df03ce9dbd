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
from typing import TYPE_CHECKING, Final

from warmup.core.errors import BuildError, ModelError, NothingRecordedError, ProblemError
from warmup.core.method import Search
from warmup.core.rows import MissReason, Winner
from warmup.diagnostics.misses import MissedProblem, read_misses
from warmup.keys.registry import kind_of
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup
from warmup.table.policy import DEFAULT_MODE, Asked
from warmup.table.store import read
from warmup.tuning.bucket_compiler import BucketCompiler
from warmup.tuning.budget import parse_budget
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import BucketResult, BuildReport, Observer
from warmup.tuning.session import Session
from warmup.tuning.setup import BuildSetup, find_setup, open_table

if TYPE_CHECKING:
    from warmup.models.rebuilt import RebuiltProblem
    from warmup.tuning.tuner import Tuner

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
    from warmup.models.rebuilt import rebuild
    from warmup.tuning.tuner import make_tuner

    search_budget = parse_budget(search, None)
    asked = Asked(
        mode=mode,
        backends=backends,
        tolerance=tolerance,
        launch=launch,
        l2=l2,
        fused_top_k=fused_top_k,
    )
    setup = find_setup(device, asked)
    path = Path(out)
    table, replaces = open_table(path, setup, force=force)
    known = tuple(
        key
        for key, redo in missed.items()
        if (row := table.rows.get(key)) is not None and not (force or redo)
        if not row.evidence.search.is_narrower_than(search_budget.search)
    )
    wanted = [key for key in missed if key not in known]
    results: list[BucketResult] = []
    refused: dict[str, str] = {}
    watcher = observer or Observer()
    with make_tuner(setup.policy, setup.device) as tuner:
        progress = Progress(
            path=path,
            table=table,
            replaces=replaces,
            observer=watcher,
            can_search=setup.can_search,
            given_up=tuner.not_tuned,
            revisit=Revisit(
                keys=frozenset(key for key, redo in missed.items() if force or redo),
                search=search_budget.search,
            ),
        )
        watcher.device_looked_at(tuner.look())
        for index, key in enumerate(wanted):
            try:
                rebuilt = rebuild(key, setup.device)
                results.append(
                    _run(key, rebuilt, setup, progress, tuner, number=(index, len(wanted)))
                )
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
        tuple(progress.tuned),
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


def _run(
    key: str,
    rebuilt: RebuiltProblem,
    setup: BuildSetup,
    progress: Progress,
    tuner: Tuner,
    *,
    number: tuple[int, int],
) -> BucketResult:
    """Tune the rebuilt module of *key*, serve it from the table and compare it with eager.

    Raises:
        BuildError: it failed, or did not ask for *key*.
    """
    others: list[str] = []
    compiler = BucketCompiler(
        setup=setup,
        model=rebuilt.model,
        progress=progress,
        tuner=tuner,
        make_lookup=partial(_OneKeyLookup, wanted=key, others=others),
    )
    accepted = progress.table.policy.tolerance
    tolerance = dict.fromkeys(accepted, accepted[rebuilt.dtype])  # whatever the epilogue ends in
    session = Session(compiler=compiler, observer=progress.observer, tolerance=tolerance)
    with rebuilt.precision():
        result = session.run_bucket(rebuilt.bucket, *number)
    if result.keys or key in tuner.not_tuned:
        return result
    if others:
        raise BuildError(f"its stand-in asks for another key: {others[0]}")
    raise BuildError("its stand-in leaves inductor nothing to choose")


@dataclass
class _OneKeyLookup(Lookup):
    """A lookup that answers and reports the key *wanted* alone.

    Another key of the same kind is noted, and nothing is measured from there on. Questions of
    other kinds about the rebuilt module are not what serving missed: they leave no trace.
    """

    wanted: str = ""
    others: list[str] = field(default_factory=list)

    @property
    def tunes(self) -> bool:
        return super().tunes and not self.others

    def find(self, key: str) -> Winner | MissReason:
        kind = kind_of(key)
        if kind is kind_of(self.wanted):
            if key != self.wanted:
                self.others.append(key)
        elif kind.neutral is not None:
            return kind.neutral
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
        if key == self.wanted:
            return super().contest(key, library, calls)
        return library  # about a kernel of the rebuilt module, which nobody will ask for
