"""`audit`: hits, misses and uncovered measurements of servers, from the events in their logs.

Also whether all processes made the same choices. Nothing here needs torch.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from warmup.core.errors import MissReason, SettingsError, TableError, TableFormatError, advice
from warmup.core.files import open_regular
from warmup.core.strict_json import check_texts, pointer_of, read_json
from warmup.core.text import printable, remedy_for, shown
from warmup.keys.kind import natural_order
from warmup.keys.registry import KINDS, kind_of
from warmup.serving.logs import Ledger, Run, read_logs, silent_runs
from warmup.table.codec import digest_of
from warmup.table.merge import combine
from warmup.table.store import read

FAILURES: Final = (
    "miss",
    "uncovered",
    "foreign",
    "silent",
    "mismatch",
    "diverged",
    "outside",
    "damaged",
)
_CACHED_MISS: Final = MissReason.CACHED_MISS.value
_FOR_FOREIGN: Final = "compile these graphs again; keep graphs under keys with the table's digest"
_FOR_MISMATCH: Final = "build a table on this kind of machine (docs/how-to/upgrades.md)"
_FOR_SILENT: Final = (
    "install before the first compile, see that the table is for this model, and that what is "
    "called was compiled; uncompiled functions and bypassed runs, if any, are below"
)


@dataclass(frozen=True, slots=True)
class Miss:
    """A problem that no row answered: the reason, the count, the nearest row and the choice."""

    key: str
    reason: str
    count: int
    nearest: str | None
    differs: tuple[str, ...]
    choice: str | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """Runs that should agree and do not: on the choice for ``key`` or, without key, on the table.

    ``choices`` has the names of the runs for each compiled choice, or for each table digest.
    """

    key: str | None
    digest: str | None
    choices: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of all runs of one table: misses by reason, uncovered measurements by site.

    ``foreign`` and ``outside`` are counted as in `AuditReport`.
    """

    runs: int
    silent: int
    hits: int
    tuned: int
    misses: Mapping[str, int]
    uncovered: Mapping[str, int]
    from_cache: int
    cached_decisions: int
    cached_misses: int
    foreign: Mapping[str, int]
    outside: Mapping[str, int]
    changed: int = 0
    mismatch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The events of all logs, counted. A *run* is one installed table in one process.

    ``hits`` and ``tuned`` count by key. ``cached_misses`` counts the misses among the decisions of
    graphs from cache. ``foreign`` counts loaded graphs that were compiled under another table, by
    its digest, or ``none`` for no table; refused graphs are among them. ``outside`` counts, by
    reason, the calls that no artifact of `warmup.compile` served, up to the last event of each
    reason: events are emitted at the first such call, the second, the fourth and so on. ``silent``
    has the runs without any decision, ``diverged`` the disagreements between runs of one table or
    between ranks. ``unfinished`` has the runs without a summary: still running, or ended by a
    signal, which a clean stop of a server is too.
    ``failed`` counts processes that could not install the table, ``mismatch`` those that the table
    is not for: refused, or gone on as without a table, and then no run. ``bypassed`` counts runs
    with graphs that did not ask the table, by cause. ``uncompiled`` counts the frames that
    torch.compile left uncompiled, with torch's reason, and ``changed`` how often frozen weights
    were changed, by the frame that was compiled again.
    ``unused`` has the rows that no run asked for, None when no table could be read, or when some
    may be in use by graphs from a cache, whose decisions have no keys in the log.
    ``by_digest`` has the counts of each table, and ``damaged`` the number of event lines that
    cannot be read.
    """

    runs: int
    digests: tuple[str, ...]
    hits: Mapping[str, int]
    misses: tuple[Miss, ...]
    uncovered: Mapping[str, int]
    tuned: Mapping[str, int]
    contradictions: tuple[str, ...]
    from_cache: int
    cached_decisions: int
    cached_misses: int
    foreign: Mapping[str, int]
    outside: Mapping[str, int]
    silent: tuple[str, ...]
    diverged: tuple[Divergence, ...]
    unused: tuple[str, ...] | None
    by_digest: Mapping[str, Counts]
    damaged: int
    unfinished: tuple[str, ...] = ()
    failed: int = 0
    mismatch: int = 0
    bypassed: Mapping[str, int] = field(default_factory=dict)
    uncompiled: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the logs have no event at all."""
        return self.runs == self.failed == self.mismatch == self.damaged == 0

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do about the misses and silent runs, a clause for each reason, after its name."""
        cached: list[tuple[str, tuple[str, ...]]] = [(_CACHED_MISS, ())]
        misses = [(miss.reason, miss.differs) for miss in self.misses]
        advised = advice(misses + (cached if self.cached_misses else []))
        if self.foreign:
            advised.append(f"foreign: {_FOR_FOREIGN}")
        if self.silent:
            advised.append(f"silent: {_FOR_SILENT}")
        if self.mismatch:
            advised.append(f"mismatch: {_FOR_MISMATCH}")
        elif not self.silent and not self.runs and not self.failed:
            advised.append("no process used the table: none compiled, or none installed it")
        return tuple(advised)

    @property
    def miss_count(self) -> int:
        """The number of decisions that no row answered."""
        return sum(miss.count for miss in self.misses)

    @property
    def reasons(self) -> Mapping[str, int]:
        """The number of misses by reason."""
        counts: Counter[str] = Counter()
        for miss in self.misses:
            counts[miss.reason] += miss.count
        return dict(counts)

    def failures(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Return those of *wanted*, words of `FAILURES`, that occurred."""
        occurred = {
            "miss": bool(self.misses) or self.cached_misses > 0,
            "uncovered": bool(self.uncovered),
            "foreign": bool(self.foreign),
            "silent": bool(self.silent) or self.runs == 0 or self.failed + self.mismatch > 0,
            "mismatch": self.mismatch > 0,
            "diverged": bool(self.diverged),
            "outside": bool(self.outside),
            "damaged": self.damaged > 0,
        }
        return tuple(name for name in wanted if occurred[name])


def audit(logs: Sequence[str | Path], *, table: str | Path | None = None) -> AuditReport:
    """Return the counts of all events in *logs*.

    A log is a file of JSON lines, or a text log with ``warmup-event`` lines among others. Unused
    rows are those of *table* or, without it, of the files that the runs installed, if these still
    have the installed digest.

    Raises:
        SettingsError: a log cannot be read.
        TableError: *table* is given and cannot be read.
    """
    ledger = read_logs(logs)
    unused = _unused(ledger, table)
    is_known = not unused or not any(run.cached_decisions for run in ledger.runs.values())
    return report_of(ledger, unused if is_known else None)


def report_of(ledger: Ledger, unused: tuple[str, ...] | None = None) -> AuditReport:
    """Return the counts of *ledger*; no file is read. *unused* is as in `AuditReport`."""
    runs = tuple(ledger.runs.values())
    digests = sorted({run.digest for run in runs})
    misses = _sum(run.misses for run in runs)
    return AuditReport(
        runs=sum(not run.is_mismatched for run in runs),
        digests=tuple(filter(None, digests)),
        hits=dict(_sum(run.hits for run in runs)),
        misses=tuple(
            Miss(key, reason, count, *ledger.first_misses[key, reason])
            for (key, reason), count in sorted(
                misses.items(), key=lambda item: natural_order(item[0][0])
            )
        ),
        uncovered=dict(_sum(run.uncovered for run in runs)),
        tuned=dict(_sum(run.tuned for run in runs)),
        contradictions=tuple(ledger.contradictions),
        from_cache=sum(run.from_cache for run in runs),
        cached_decisions=sum(run.cached_decisions for run in runs),
        cached_misses=sum(run.cached_misses for run in runs),
        foreign=dict(_sum(run.foreign for run in runs)),
        outside=dict(_sum(run.outside for run in runs)),
        silent=tuple(run.name for run in silent_runs(runs)),
        diverged=(*_ranks_apart(runs), *_choices_apart(runs)),
        unused=unused,
        by_digest={
            digest: _counts([run for run in runs if run.digest == digest]) for digest in digests
        },
        damaged=ledger.damaged,
        unfinished=tuple(run.name for run in runs if run.is_unfinished),
        failed=ledger.failed,
        mismatch=ledger.refused + sum(run.is_mismatched for run in runs),
        bypassed=dict(_sum(Counter(run.bypassed) for run in runs)),
        uncompiled=dict(_sum(run.uncompiled for run in runs)),
        changed=dict(_sum(run.changed for run in runs)),
    )


def _sum(counters: Iterable[Counter[Any]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _counts(runs: Sequence[Run]) -> Counts:
    reasons: Counter[str] = Counter()
    for run in runs:
        for (_, reason), count in run.misses.items():
            reasons[reason] += count
    return Counts(
        runs=sum(not run.is_mismatched for run in runs),
        mismatch=sum(run.is_mismatched for run in runs),
        silent=len(silent_runs(runs)),
        hits=sum(run.hits.total() for run in runs),
        tuned=sum(run.tuned.total() for run in runs),
        misses=dict(reasons),
        uncovered=dict(_sum(run.uncovered for run in runs)),
        from_cache=sum(run.from_cache for run in runs),
        cached_decisions=sum(run.cached_decisions for run in runs),
        cached_misses=sum(run.cached_misses for run in runs),
        foreign=dict(_sum(run.foreign for run in runs)),
        outside=dict(_sum(run.outside for run in runs)),
        changed=sum(run.changed.total() for run in runs),
    )


def _ranks_apart(runs: Sequence[Run]) -> list[Divergence]:
    """Return the divergence of ranks that installed different tables; empty if they agree."""
    ranked = [run for run in runs if run.rank and run.digest]
    tables: dict[str, set[str]] = {}
    holders: dict[str, list[str]] = {}
    for run in ranked:
        tables.setdefault(run.rank, set()).add(run.digest)
        holders.setdefault(run.digest, []).append(run.label)
    if len({frozenset(digests) for digests in tables.values()}) <= 1:
        return []
    return [Divergence(None, None, {digest: tuple(holders[digest]) for digest in sorted(holders)})]


def _choices_apart(runs: Sequence[Run]) -> list[Divergence]:
    """Return each key for which runs of one table compiled different choices."""
    if len(runs) < 2:  # noqa: PLR2004  one run agrees with itself
        return []
    runs_by_key: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for key in run.choices:
            runs_by_key.setdefault((run.digest, key), []).append(run)
    diverged: list[Divergence] = []
    for (digest, key), same_key in runs_by_key.items():
        if len({frozenset(run.choices[key]) for run in same_key}) > 1:
            choices = sorted({choice for run in same_key for choice in run.choices[key]})
            by_choice = {
                choice: tuple(run.label for run in same_key if choice in run.choices[key])
                for choice in choices
            }
            diverged.append(Divergence(key, digest, by_choice))
    return sorted(diverged, key=lambda each: (natural_order(each.key or ""), each.digest or ""))


def _unused(ledger: Ledger, named: str | Path | None) -> tuple[str, ...] | None:
    runs = [run for run in ledger.runs.values() if not run.is_mismatched]
    asked = {key for run in runs for key in (*run.hits, *run.tuned, *(k for k, _ in run.misses))}
    if named is not None:
        return _unasked(read(Path(named)).rows.keys(), asked)
    rows: set[str] = set()
    for run in runs:
        try:
            tables = [read(Path(path)) for path in run.table_paths if Path(path).is_file()]
        except (OSError, TableError, ValueError):  # a path that no file has, or no table
            return None
        union = combine(tables)[0] if tables else None
        if union is None or digest_of(union) != run.table_digest:
            return None
        rows |= union.rows.keys()
    return _unasked(rows, asked) if runs else None


def _unasked(keys: AbstractSet[str], asked: AbstractSet[str]) -> tuple[str, ...]:
    """Return those of *keys* that inductor asks for while it compiles, and did not ask for."""
    unasked = (key for key in keys - asked if kind_of(key).is_asked)
    return tuple(sorted(unasked, key=natural_order))


# `MissedProblem` and the misses document: the problems that no row answered while serving.

MISSES_SCHEMA: Final = 1
TUNED: Final = "tuned"  # the reason of a problem that was measured while a program was recorded
_MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
_MAX_KEY: Final = 4096
_MAX_REASON_LENGTH: Final = 64
_MAX_DIGESTS: Final = 10_000
_MAX_MISSES: Final = 10**15
# The reasons of keys that have a row which cannot be used.
_STALE: Final = frozenset(
    {
        MissReason.TEMPLATE_ABSENT,
        MissReason.TEMPLATE_CHANGED,
        MissReason.CHOICE_REJECTED,
        MissReason.UNTRUSTED,
    }
)


_Word = Annotated[str, Meta(max_length=_MAX_REASON_LENGTH)]


class _Problem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    count: Annotated[int, Meta(ge=1, le=_MAX_MISSES)]
    key: Annotated[str, Meta(max_length=_MAX_KEY)]
    kind: _Word
    layers: msgspec.Raw = msgspec.Raw()  # of earlier audits, and ignored
    reason: _Word
    source: msgspec.Raw = msgspec.Raw()  # as layers


class _Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    digests: Annotated[list[_Word], Meta(max_length=_MAX_DIGESTS)]
    problems: list[_Problem]
    schema: Annotated[int, Meta(ge=1, le=MISSES_SCHEMA)]


@dataclass(frozen=True, slots=True)
class MissedProblem:
    """A problem that no row answered, with the reason and the number of misses."""

    key: str
    kind: str
    reason: str
    count: int

    @property
    def is_stale(self) -> bool:
        """Whether the table has a row for the key that could not be used."""
        return self.reason in _STALE


def encode_misses(report: AuditReport) -> str:
    """Return the misses document of *report*: its misses and its tuned problems.

    Keys come from logs and are not trusted: characters that cannot be printed are escaped, and keys
    are cut to the length that `read_misses` accepts.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for miss in report.misses:
        problem = _bounded(miss.key, _MAX_KEY), _bounded(miss.reason, _MAX_REASON_LENGTH)
        counts[problem] += miss.count
    for key, count in report.tuned.items():
        counts[_bounded(key, _MAX_KEY), TUNED] += count
    return encode_problems(counts, report.digests)


def encode_problems(counts: Mapping[tuple[str, str], int], digests: Iterable[str]) -> str:
    """Return the misses document of problems by key and reason, missed under tables *digests*."""
    problems = [
        MissedProblem(key, kind_of(key).name, reason, min(count, _MAX_MISSES))
        for (key, reason), count in sorted(
            counts.items(), key=lambda item: (natural_order(item[0][0]), item[0])
        )
    ]
    document = {
        "schema": MISSES_SCHEMA,
        "digests": sorted({_bounded(digest, _MAX_REASON_LENGTH) for digest in digests})[
            :_MAX_DIGESTS
        ],
        "problems": [asdict(problem) for problem in problems],
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def read_misses(path: str | Path) -> tuple[MissedProblem, ...]:
    """Return the problems in the misses document *path*, in its order.

    Raises:
        SettingsError: the file cannot be read, or is not a misses document; the text has the JSON
            pointer.
    """
    path = Path(path)
    advice = "write it with `warmup audit LOG... --misses-out FILE`"
    name = f"--problems {shown(path)}"
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_DOCUMENT_BYTES:
                raise SettingsError(f"{name}: larger than {_MAX_DOCUMENT_BYTES} bytes", advice)
            document, _ = read_json(file.read(), _Document, str(path))
            return _problems(document, str(path))
    except TableFormatError as error:
        at = f" at {shown(error.pointer)}" if error.pointer else ""
        problem = f"{name}: not a misses document{at}: {shown(error.reason)}"
        raise SettingsError(problem, advice) from None
    except OSError as error:
        raise SettingsError(
            f"{name}: cannot be read: {error.strerror}", remedy_for(error, advice)
        ) from error
    except ValueError as error:  # a path with a NUL character
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{name}: cannot be read: {error}", advice) from error


def _problems(document: _Document, path: str) -> tuple[MissedProblem, ...]:
    """Return the problems of *document*.

    Raises:
        TableFormatError: one is there twice, or a text cannot be printed.
    """
    check_texts(document.digests, path, "digests")
    problems: dict[tuple[str, str], MissedProblem] = {}
    for number, each in enumerate(document.problems):
        place = "problems", number
        texts = {"key": each.key, "reason": each.reason}
        check_texts(texts, path, *place)
        if each.kind not in KINDS or each.kind != kind_of(each.key).name:
            reason = f"the key is of kind {kind_of(each.key).name}"
            raise TableFormatError(path, pointer_of(*place, "kind"), reason)
        if (each.key, each.reason) in problems:
            reason = f"problem {number} is a repetition"
            raise TableFormatError(path, pointer_of("problems"), reason)
        problems[each.key, each.reason] = MissedProblem(
            each.key, each.kind, each.reason, each.count
        )
    return tuple(problems.values())


def _bounded(text: str, limit: int) -> str:
    return printable(text)[:limit]
