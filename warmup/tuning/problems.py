"""`ProblemsSource`: tunes problems without the model, each rebuilt as a small module from its key.

A problem that cannot be rebuilt is reported with its reason, and the others are tuned. Torch's own
lookup table of GEMM configs is read as such problems, and written from a table.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

from torch import nn

from warmup.core.device import Device, minor_of
from warmup.core.errors import (
    BuildError,
    MissReason,
    ModelError,
    NothingRecordedError,
    ProblemError,
    SettingsError,
    TableFormatError,
)
from warmup.core.events import Hit, HookEvent, Missed
from warmup.core.files import open_regular
from warmup.core.roofline import dtype_name
from warmup.core.rows import MAX_INT, Family, Row, Search, SearchCounts, Winner, ranked
from warmup.core.strict_json import read_json
from warmup.core.text import counted, problem_in, shown
from warmup.keys.gemm import Dim, GemmProblem, bias_form, layout_of
from warmup.keys.kind import Problem
from warmup.keys.question import GemmQuestion, Question, RegionQuestion, SearchQuestion
from warmup.keys.registry import kind_of
from warmup.models.model_target import LoadedModel
from warmup.models.rebuilt import gemm_tensors, rebuild, size_of
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
    build,
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

    def refuses(self, _request: BuildRequest) -> frozenset[str]:
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


ASSUMED: Final = (
    "assumed, since torch's key does not say it: no epilogue, a result of the operands' dtype, "
    "reductions of f16 and bf16 in reduced precision, and f32 products in full precision, unless a "
    "template is allowed tf32"
)
_KNOWN_TORCH: Final = ("2.11", "2.12", "2.13", "2.14", "2.15")  # whose lookup table was read
_SLOWER_KERNEL: Final = (
    "torch's key lacks the epilogue, and over all rows of the key another kernel takes less time"
)
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_ENTRIES: Final = 100_000
_MAX_KEY: Final = 4096  # characters
_FILE_NAME: Final = 160  # characters of a file's name in an origin
_NODE: Final = r"\(torch\.[a-z0-9_]{1,32}, \[[0-9, ]{0,200}\], \[[0-9, ]{0,200}\]\)"
_ONE_NODE: Final = re.compile(r"\((torch\.\w+), \[([0-9, ]*)\], \[([0-9, ]*)\]\)")
_KEY: Final = re.compile(
    rf"(?:[^+(]{{1,100}}\+)?\((?P<nodes>{_NODE}(?:, {_NODE}){{0,7}}),?\)"
    r"(?:\+(?P<scalars>[a-z_]{1,32}=[^+]{1,64}))?\+(?P<op>[a-z][a-z0-9_]{0,63})"
)
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?")
_HASH: Final = re.compile(r"[0-9a-f]{8,64}")
_OPERANDS: Final = {"mm": 2, "bmm": 2, "int_mm": 2, "addmm": 3, "baddbmm": 3, "mm_plus_mm": 4}
_BATCHED: Final = frozenset({"bmm", "baddbmm"})
_BIASED: Final = frozenset({"addmm", "baddbmm"})
_SPLIT: Final = "decompose_k"
_KERNELS: Final = {  # that torch's table and a row can name, by the part of the name before ::
    "aten": frozenset({"mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm", "_mm_plus_mm"}),
    "triton": frozenset(
        {
            *("mm", "bmm", "mm_plus_mm", "mm_persistent", "mm_persistent_tma"),
            "blackwell_ws_persistent_device_tma",
        }
    ),
    "": frozenset({_SPLIT}),
}
_MOST_SPLITS: Final = 4096

# Tuning kwargs of a template, each with its highest value and whether it is a power of two; torch
# derives all others from the operands.
_TUNED_KWARGS: Final[Mapping[str, tuple[int, bool]]] = {
    "BLOCK_M": (1024, True),
    "BLOCK_N": (1024, True),
    "BLOCK_K": (1024, True),
    "GROUP_M": (1024, False),
    "num_stages": (16, False),
    "num_warps": (32, True),
}

Config = Mapping[str, Any]
Strided = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides, in elements


@dataclass(frozen=True, slots=True)
class Entry:
    """A config of torch's table: the key of its GEMM and the kernel, or what is ``lacking``.

    ``origin`` is the file with the number of the key. ``key`` is None where no row answers such a
    GEMM, ``winner`` where no kernel can be made; of a template it has the tuning kwargs alone.
    """

    origin: str
    key: str | None = None
    winner: Winner | None = None
    lacking: str = ""


def read_lookup_table(path: Path) -> list[Entry]:
    """Return an entry for each config in the file *path*, JSON of torch's lookup table.

    Raises:
        SettingsError: the file cannot be read, or is no lookup table.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(path, problem_in(error)) from error
    if len(raw) > _MAX_BYTES:
        raise _unreadable(path, f"larger than {_MAX_BYTES} bytes")
    try:
        document, _ = read_json(raw, dict[str, list[Any]], str(path))
    except TableFormatError as error:
        place = f" at {error.pointer}" if error.pointer else ""
        raise _unreadable(path, f"no lookup table of torch{place}: {error.reason}") from error
    entries: list[Entry] = []
    name = shown(path.name)[-_FILE_NAME:]
    for number, (text, configs) in enumerate(document.items(), 1):
        entries += _entries(text, configs, f"{name}:entry {number}")
        if len(entries) > _MAX_ENTRIES:
            raise _unreadable(path, f"more than {_MAX_ENTRIES} configs")
    return entries


def _unreadable(path: Path, reason: str) -> SettingsError:
    return SettingsError(f"{shown(path)}: {shown(reason)}", "name a lookup table of torch as JSON")


def _entries(text: str, configs: list[Any], origin: str) -> Iterator[Entry]:
    if not all(isinstance(config, dict) for config in configs):
        yield Entry(origin, lacking="a config is no object")
        return
    try:
        key = _problem_of(text, configs).key
    except ProblemError as error:
        yield Entry(origin, lacking=str(error))
        return
    if not configs:
        yield Entry(origin, key, lacking="it has no config")
    yield from (_entry(config, origin, key) for config in configs)


def _entry(config: Config, origin: str, key: str) -> Entry:
    try:
        return Entry(origin, key, winner_of(config))
    except ProblemError as error:
        return Entry(origin, key, lacking=str(error))


def _problem_of(text: str, configs: Sequence[Config]) -> GemmProblem:
    match = _KEY.fullmatch(text) if len(text) <= _MAX_KEY else None
    if match is None:
        raise ProblemError("not a key of torch's lookup table")
    op, nodes = match["op"], _ONE_NODE.findall(match["nodes"])
    if op not in _OPERANDS:
        raise ProblemError(f"the key of {op} does not say all that the key of a row has")
    if len(nodes) != _OPERANDS[op]:
        raise ProblemError(f"{op} has {_OPERANDS[op]} operands, the key {len(nodes)}")
    operands = [(_numbers(sizes), _numbers(strides)) for _, sizes, strides in nodes]
    dtypes = {dtype_name(dtype) for dtype, _, _ in nodes}
    scalars = dict(part.partition("=")[::2] for part in (match["scalars"] or "").split("&") if part)
    if scalars.keys() - {"alpha", "beta"} or not all(map(_NUMBER.fullmatch, scalars.values())):
        raise ProblemError(f"scalars {shown(match['scalars'])}: only plain alpha and beta are read")
    bias, factors = (operands[:1], operands[1:]) if op in _BIASED else ([], operands)
    rank = 3 if op in _BATCHED else 2
    if any(len(sizes) != rank or len(strides) != rank for sizes, strides in factors):
        raise ProblemError(f"a factor of {op} has {rank} dims, the key another number")
    (a, b), pair = factors[:2], factors[2:]
    (m, k), (b_k, n) = a[0][-2:], b[0][-2:]
    if b_k != k or a[0][:-2] != b[0][:-2] or len(dtypes) != 1:
        raise ProblemError("the operands do not fit together")
    if any(one[0] != other[0] for one, other in zip((a, b), pair, strict=False)):
        raise ProblemError("the two products have other sizes")
    (dtype,) = dtypes
    layouts = [layout_of(list(size), list(step), int.__eq__, Dim.of) for size, step in factors]
    precision = "tf32" if any(each.get("ALLOW_TF32") is True for each in configs) else "ieee"
    return GemmProblem(
        op=op,
        batch=Dim.of(a[0][0]) if op in _BATCHED else None,
        m=Dim.of(m),
        n=Dim.of(n),
        k=Dim.of(k),
        dtype=dtype,
        a=layouts[0],
        b=layouts[1],
        a2=layouts[2] if pair else None,
        b2=layouts[3] if pair else None,
        bias=bias_form(rank, *bias[0]) if bias else None,
        out="i32" if op == "int_mm" else dtype,
        alpha=float(scalars.get("alpha", 1)),
        beta=float(scalars.get("beta", 1)),
        fp32=precision if dtype == "f32" else None,
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) <= len(str(MAX_INT)) for part in parts):
        raise ProblemError(f"{text[:40]!r} are no sizes")
    if any(int(part) > MAX_INT for part in parts):
        raise ProblemError(f"a size or stride is larger than {MAX_INT}")
    return tuple(map(int, parts))


def winner_of(config: Config) -> Winner:
    """Return the kernel of *config* with the kwargs that are tuned: torch derives the others again.

    Raises:
        ProblemError: *config* names no kernel of a row, or not all of its kwargs.
    """
    named, digest = config.get("template_id"), config.get("template_hash")
    if not isinstance(named, str):
        raise ProblemError("the config has no template_id")
    if not _is_known(named):
        raise ProblemError(f"{shown(named)} is no kernel that a row can name")
    if named.startswith("aten::"):
        return Winner(Family.EXTERN, named)
    if named == _SPLIT:
        splits = config.get("k_split")
        if type(splits) is not int or not 1 < splits <= _MOST_SPLITS:
            raise ProblemError("k_split is not given")
        return Winner(Family.SUBGRAPH, _SPLIT, (("k_split", splits),))
    if digest is not None and not (isinstance(digest, str) and _HASH.fullmatch(digest)):
        raise ProblemError("the hash of the template's source is no hash")
    tuned: list[tuple[str, int]] = []
    for kwarg, (most, is_power) in sorted(_TUNED_KWARGS.items()):
        value = config.get(kwarg)
        if type(value) is not int:
            raise ProblemError(f"{kwarg} is not given")
        if not 1 <= value <= most or (is_power and value & (value - 1)):
            raise ProblemError(f"{kwarg}={value} is no value that a template takes")
        tuned.append((kwarg, value))
    return Winner(Family.TEMPLATE, named, tuple(tuned), digest)


def _is_known(kernel: str) -> bool:
    family, _, name = kernel.rpartition("::")
    return name in _KERNELS.get(family, ())


# -- Into a table ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredConfigs:
    """What measuring the configs of torch's table gave.

    ``confirmed`` are keys whose new row has a config of torch's, ``refuted`` those whose new row
    has the library's kernel or is not trusted. ``open`` has by reason the keys without a row. Keys
    that had a row already, which stays, are known to ``report``.
    """

    report: BuildReport
    confirmed: list[str] = field(default_factory=list)
    refuted: list[str] = field(default_factory=list)
    open: dict[str, list[str]] = field(default_factory=dict)


def measure_configs(
    entries: Iterable[Entry], path: Path, options: BuildOptions, observer: Observer | None = None
) -> MeasuredConfigs:
    """Measure the configs of *entries* and the library's kernels; add a row for each key to *path*.

    The problem of each key is rebuilt. A row has the fastest of these kernels and its evidence.

    Raises as `warmup.tuning.build.build` does.
    """
    configs: dict[str, list[Winner]] = {}
    for entry in entries:
        if entry.key is not None and entry.winner is not None:
            configs.setdefault(entry.key, []).append(entry.winner)
    problems = [MissedProblem(key, kind_of(key).name, "imported", 1) for key in configs]
    report = build(
        BuildRequest(
            source=ProblemsSource(problems, imported=configs),
            runner=ThisProcess(),
            out=path,
            options=options,
        ),
        observer,
    )
    measured, why = MeasuredConfigs(report), {**report.not_rebuilt, **report.not_tuned}
    for key in sorted(configs.keys() - {*report.known}):
        row = report.table.rows.get(key)
        if row is None:
            measured.open.setdefault(why.get(key, "no row was measured"), []).append(key)
        elif row.untrusted is None and any(one.names(row.winner) for one in configs[key]):
            measured.confirmed.append(key)
        else:
            measured.refuted.append(key)
    return measured


# -- From a table ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """Torch's lookup table: ``entries`` has by torch's key the one kernel of its rows.

    ``left_out`` has by reason the keys of the rows that torch's table cannot express.
    """

    entries: Mapping[str, Sequence[Config]]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)


def export_lookup_table(table: Table) -> ExportedTable:
    """Return the GEMM rows of *table* as torch's own lookup table, without its file.

    A config has all kwargs of the row's kernel and the hash of its template, so that torch derives
    none of them for other blocks, and drops the config where the template has changed. Torch
    measures the kernels of a key that has several. Rows that differ in what torch's key does not
    have, such as the epilogue, share a key: it gets the kernel with the least time over all of
    them, and rows with another kernel are left out. On NVIDIA a key names the device.

    Raises:
        SettingsError: the form of the lookup table is not known for the torch of *table*.
    """
    runtime = table.provenance.runtime
    minor = minor_of(runtime.torch)
    if minor not in _KNOWN_TORCH:
        raise SettingsError(
            f"torch {runtime.torch} built the table, and torch's lookup table is known of "
            f"{_KNOWN_TORCH[0]} to {_KNOWN_TORCH[-1]}",
            "take a table of such a torch, or a newer inductor-warmup",
        )
    left_out: dict[str, list[str]] = {}
    sharing: dict[str, dict[str, Row]] = {}
    for key, row in sorted(table.rows.items()):
        try:
            text = _torch_key(key, row, runtime.device)
        except ProblemError as error:
            left_out.setdefault(str(error), []).append(key)
        else:
            sharing.setdefault(text, {})[key] = row
    entries: dict[str, list[dict[str, Any]]] = {}
    for text, rows in sharing.items():
        winner = min(
            (row.winner for row in rows.values()),
            key=lambda winner: sum(_time_in(row, winner) for row in rows.values()),
        )
        for key, row in rows.items():
            if row.winner.choice != winner.choice:
                left_out.setdefault(_SLOWER_KERNEL, []).append(key)
        digest = winner.source_hash
        config = {"template_id": winner.uid, **({"template_hash": digest} if digest else {})}
        problem = GemmProblem.of_key(next(iter(rows)))
        is_apart = problem.op == "addmm" and winner.family is Family.EXTERN and minor != "2.11"
        key = _torch_text(problem, bias_as_added=False) if is_apart else text
        name = f"{runtime.device.name}+" if runtime.device.vendor == "nvidia" else ""
        entries[name + key] = [{**config, **dict(winner.kwargs)}]
    return ExportedTable(entries, left_out)


def _time_in(row: Row, winner: Winner) -> float:
    """Return the time of *winner* in *row* where torch chooses it, which fuses what it can.

    A kernel that the evidence does not list was slower than all that it lists.
    """
    evidence = row.evidence
    times = {
        row.winner.short: evidence.time_us,
        **{text: time for time, text in ranked(evidence.ranking)},
    }
    for fused in (True, None, False):
        if (name := replace(winner, fused=fused).short) in times:
            return times[name]
    if winner.family is Family.EXTERN and evidence.library_us is not None:
        return evidence.library_us
    return max(times.values())


def _torch_key(key: str, row: Row, device: Device) -> str:
    """Return the text by which torch finds the configs of the GEMM *key*.

    Raises:
        ProblemError: torch's table cannot express the row; all rows of a reason have one message.
    """
    kind = kind_of(key).name
    if kind != "gemm":
        raise ProblemError(f"rows of the kind {kind}: torch's table is for GEMMs alone")
    problem, winner = GemmProblem.of_key(key), row.winner
    longest = max(problem.m.low, problem.n.low)
    names = {name for _, name in ranked(row.evidence.ranking)}
    reasons = {
        "the table is for a CPU: torch looks configs up on GPUs alone": device.type != "cuda",
        "the row is not trusted": row.untrusted is not None,
        f"torch's key of {problem.op} does not say the dtype of the result or the precision": (
            problem.op not in _OPERANDS
        ),
        "a range of sizes: torch's key has one size": not all(
            dim is None or dim.is_static for dim in (problem.batch, problem.m, problem.n, problem.k)
        ),
        "a result of another dtype: torch's key does not say it": (
            problem.op != "int_mm" and problem.out != problem.dtype
        ),
        "f32 products in tf32: torch's key does not say the precision": problem.fp32 == "tf32",
        "reductions in full precision: torch's key does not say it": problem.reduction is not None,
        "an alpha or beta other than 1: a key has six digits of it, torch's key all": (
            (problem.alpha, problem.beta) != (1, 1)
        ),
        "the kernel is faster where nothing is fused into it: torch would fuse": (
            winner.fused is False and replace(winner, fused=True).short in names
        ),
        f"torch does not have the kernel {winner.uid}": not _is_known(winner.uid),
        "torch lists decompose_k from K = 32 max(M, N) on, and no tile from 64 max(M, N) on": (
            problem.op == "mm"
            and (
                (winner.uid == _SPLIT and problem.k.low < 32 * longest)
                or (winner.family is Family.TEMPLATE and problem.k.low >= 64 * longest)
            )
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ProblemError(reason)
    return _torch_text(problem)


def _torch_text(problem: GemmProblem, *, bias_as_added: bool = True) -> str:
    tensors = gemm_tensors(problem)
    names = [name for name in ("bias", "a", "b", "a2", "b2") if name in tensors]
    shapes = {
        name: (tuple(map(size_of, each.sizes)), each.strides) for name, each in tensors.items()
    }
    if "bias" in shapes and bias_as_added:
        out = (*shapes["a"][0][:-1], shapes["b"][0][-1])
        shapes["bias"] = _expanded(shapes["bias"], out)
    nodes = ", ".join(
        f"({tensors[name].dtype}, {list(shapes[name][0])}, {list(shapes[name][1])})"
        for name in names
    )
    scalars = "+alpha=1&beta=1" if problem.op in _BIASED else ""
    return f"({nodes}){scalars}+{problem.op}"


def _expanded(bias: Strided, out: tuple[int, ...]) -> Strided:
    sizes, strides = bias
    missing = len(out) - len(sizes)
    own = zip(out[missing:], sizes, strides, strict=True)
    return out, (*[0] * missing, *(stride if size == wanted else 0 for wanted, size, stride in own))
