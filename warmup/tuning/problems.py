"""`ProblemsSource`: tunes problems without the model, each rebuilt as a small module from its key.

A problem that cannot be rebuilt is reported with its reason, and the others are tuned.
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
from typing import ClassVar, Final

from torch import nn

from warmup.core.errors import (
    BuildError,
    MissReason,
    ModelError,
    NothingRecordedError,
    ProblemError,
    SettingsError,
)
from warmup.core.events import Hit, HookEvent, Missed
from warmup.core.rows import Family, Row, Search, SearchCounts, Winner
from warmup.core.text import counted, shown
from warmup.keys.kind import Problem
from warmup.keys.question import GemmQuestion, Question, RegionQuestion, SearchQuestion
from warmup.keys.registry import kind_of
from warmup.models.model_target import LoadedModel
from warmup.models.rebuilt import rebuild
from warmup.serving.audit import MissedProblem, read_misses
from warmup.table.lookup import Lookup
from warmup.table.schema import Table
from warmup.tuning.bucket_compiler import BucketCompiler, measure_regions
from warmup.tuning.build import (
    OF_MODELS,
    BuildContext,
    BuildOptions,
    BuildRequest,
    ThisProcess,
    TunedWork,
    Work,
    open_progress,
)
from warmup.tuning.progress import Revisit, parse_budget, parse_seconds
from warmup.tuning.report import NOT_BEGUN, BucketResult, BuildPlan, BuildReport, Observer
from warmup.tuning.session import Session
from warmup.tuning.trials import WaitingQuestion

# `OneKeyLookup`: a lookup for a module that was rebuilt from one key.


@dataclass
class OneKeyLookup(Lookup):
    """A lookup that answers and reports the key *wanted* alone.

    After a question for another key of the same kind, which goes to *others*, nothing is measured:
    the module was rebuilt wrongly. The module's questions of other kinds get a neutral winner and
    are not reported: serving did not miss them. Where the ways of *wanted* are compiled to be
    timed, each with a GEMM of its own, the GEMMs are tuned too. With the search ``imported`` the
    candidates are the kernels *named* and the library's.
    """

    wanted: str = ""
    others: list[str] = field(default_factory=list)
    named: Sequence[Winner] = ()

    def _wants(self, key: str) -> bool:
        has_variants = kind_of(self.wanted).neutral is not None
        return key == self.wanted or (has_variants and kind_of(key).is_searchable)

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


# Shares of the problems of a document, and the problems as a source of a build.

_SHOWN_PROBLEMS: Final = 3
_SHARD: Final = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


def parse_shard(text: str) -> tuple[int, int]:
    """Return the numbers I and N of a share written ``I/N``."""
    match = _SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise SettingsError(
            f"--shard {shown(text)!r} is no share of the problems",
            "write I/N with I from 1 to N, such as 2/8",
        )
    return int(match[1]), int(match[2])


def share_of(problems: Sequence[MissedProblem], shard: str | None) -> Sequence[MissedProblem]:
    """Return the share *shard* of *problems*, such as ``2/8``; all of them for None.

    The keys are ordered by a hash, and each N-th key belongs to the share: the N shares are
    disjoint, have all keys together, and are the same on every machine and for every order of the
    document.
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
    return [MissedProblem(key, kind_of(key).name, MissReason.NOT_IN_TABLE, 1) for key in keys]


@dataclass(frozen=True, slots=True)
class ProblemsSource:
    """Problems that serving missed, or the misses document that has them.

    A problem with a row is not tuned again, unless ``again`` has its key, its row could not be used
    at serving, or was searched less far. A key of ``again`` that cannot be rebuilt keeps its row.
    With ``imported``, the configs of each key, only these and the library's kernels are tried.
    Problems that ``regions`` describe are measured in their regions instead of being rebuilt.
    """

    label: ClassVar[str] = "--problems"

    problems: Path | Sequence[MissedProblem]
    shard: str | None = None
    again: Collection[str] = ()
    imported: Mapping[str, Sequence[Winner]] | None = None
    regions: Sequence[RegionQuestion] = ()

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        if self.imported is not None and not isinstance(request.runner, ThisProcess):
            raise SettingsError("torch's file is measured on one device", "name one as --device")
        return OF_MODELS

    def missed(self) -> dict[str, bool]:
        """Return the keys with whether they are measured although they may have a row."""
        every = read_misses(self.problems) if isinstance(self.problems, Path) else self.problems
        missed: dict[str, bool] = {}
        for problem in share_of(every, self.shard):
            missed[problem.key] = missed.get(problem.key, False) or problem.is_stale
        described = {question.key for question in self.regions}
        missed |= dict.fromkeys(self.again, True)
        return {key: is_stale for key, is_stale in missed.items() if key not in described}

    def search(self, options: BuildOptions) -> Search:
        if self.imported is not None:
            return Search.IMPORTED
        return parse_budget(options.search, None).search

    def build(self, request: BuildRequest, observer: Observer) -> BuildReport:
        self.search(request.options)
        deadline_of(request.options, 0)
        self.missed()
        return request.runner.tune(request, observer)

    def open(self, context: BuildContext) -> Work:
        keys = MissedKeys(self.missed(), self.search(context.options), force=context.options.force)
        progress = open_progress(context, context.request.path, keys.revisit)
        known, wanted = keys.split(progress.rows)
        return _ProblemsWork(self, context, known, wanted)


@dataclass(frozen=True, slots=True)
class MissedKeys:
    """The keys of a build of problems, with whether their row could not be used."""

    missed: Mapping[str, bool]
    search: Search
    force: bool = False

    @property
    def again(self) -> frozenset[str]:
        return frozenset(key for key, is_stale in self.missed.items() if self.force or is_stale)

    def revisit(self, _table: Table) -> Revisit:
        return Revisit(keys=self.again, search=self.search)

    def split(self, rows: Mapping[str, Row]) -> tuple[tuple[str, ...], list[str]]:
        """Return the keys that *rows* answer, and those to tune.

        A row answers nothing that could not be used at serving, is not trusted, or was searched
        less far.
        """
        again = self.again
        known = {
            key: row
            for key in self.missed
            if (row := rows.get(key)) is not None and key not in again
            if row.untrusted is None
            if not row.evidence.search.is_narrower_than(self.search)
        }
        return tuple(known), [key for key in self.missed if key not in known]


def deadline_of(options: BuildOptions, started: float) -> float:
    budget = options.budget
    return math.inf if budget is None else started + parse_seconds(budget, "--budget")


@dataclass(frozen=True, slots=True)
class _ProblemsWork:
    source: ProblemsSource
    context: BuildContext
    known: tuple[str, ...]
    wanted: Sequence[str]

    def plan(self) -> BuildPlan:
        return BuildPlan(buckets=(), known=self.known, missing=tuple(self.wanted))

    def tune(self) -> TunedWork:
        context, source = self.context, self.source
        deadline = deadline_of(context.options, context.started)
        if source.regions:
            self._measure_regions(source.regions)
        results, not_rebuilt = list[BucketResult](), dict[str, str]()
        for index, key in enumerate(self.wanted):
            if time.monotonic() >= deadline:
                return TunedWork(
                    buckets=results, not_rebuilt=not_rebuilt, not_begun=self.wanted[index:]
                )
            named, number = (source.imported or {}).get(key, ()), (index, len(self.wanted))
            try:
                results.append(tune_rebuilt(key, context, number=number, named=named))
            except (BuildError, ModelError, ProblemError) as error:
                if key not in source.again or key not in context.progress.rows:
                    not_rebuilt[key] = str(error)
        return TunedWork(buckets=results, not_rebuilt=not_rebuilt)

    def _measure_regions(self, questions: Sequence[RegionQuestion]) -> None:
        context, tuner = self.context, self.context.tuner
        compiler = BucketCompiler(
            setup=context.setup,
            model=LoadedModel(nn.Identity(), None, "region"),  # compiled without a model
            progress=context.progress,
            tuner=tuner,
        )
        for question in questions:
            tuner.region_questions.keep(WaitingQuestion(question, (), is_disturbed=False))
        measure_regions(compiler)

    def check(self, work: TunedWork, not_tuned: Mapping[str, str]) -> None:
        check_written(self.context.progress.path, len(self.wanted), work.not_rebuilt, not_tuned)

    def pack(self) -> None:
        return None


def check_written(
    path: Path, count: int, not_rebuilt: Mapping[str, str], not_tuned: Mapping[str, str]
) -> None:
    if not path.exists():
        # The first reasons are those of problems that were begun.
        begun = {key: why for key, why in not_tuned.items() if why != NOT_BEGUN}
        reasons = {**not_rebuilt, **begun, **not_tuned}.items()
        raise NothingRecordedError(
            f"none of {count} problems could be rebuilt, and there is no table at {path}",
            "; ".join(f"{key}: {why}" for key, why in islice(reasons, _SHOWN_PROBLEMS)),
        )


def tune_rebuilt(
    key: str,
    context: BuildContext,
    *,
    number: tuple[int, int] = (0, 1),
    named: Sequence[Winner] = (),
) -> BucketResult:
    """Rebuild the module of *key*, tune it, serve it from the table and judge its output."""
    # *named* are the kernels to measure beside the library's, for the search ``imported``. A
    # ProblemError or ModelError says that the module cannot be rebuilt, a BuildError that compiling
    # failed or the module did not ask for *key*.
    setup, progress, tuner = context.setup, context.progress, context.tuner
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
