"""`audit`: hits, misses and uncovered measurements of servers, from the events in their logs.

A log has JSON lines, or an ordinary server's lines with events among them. Logs are not trusted:
each event is checked, damaged events are counted, other lines are skipped. Nothing needs torch.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
from msgspec import Meta

from warmup.core.errors import MissReason, SettingsError, TableError, TableFormatError, advice
from warmup.core.events import COUNTERS, EVENT_SCHEMA, LOG_MARKER, EventName, count_of, selections
from warmup.core.files import open_regular
from warmup.core.strict_json import check_texts, pointer_of, read_json
from warmup.core.text import counted, printable, problem_in, remedy_for, shown
from warmup.keys.kind import natural_order
from warmup.keys.registry import KINDS, kind_of
from warmup.table.codec import digest_of
from warmup.table.invariance import Invariance, invariance_of
from warmup.table.merge import combine
from warmup.table.schema import Table
from warmup.table.store import read

MAX_LINE: Final = 1_000_000
_MAX_COUNT: Final = 10**15
_Count = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
# The fields that each event must have.
_IDENTITY: Final[Mapping[str, Any]] = {"run": str, "pid": _Count, "seq": _Count}
_BUNDLE: Final = ("bundle", "bundle_refused")
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    EventName.INSTALLED: {
        "paths": tuple[str, ...],
        "table": str,
        **dict.fromkeys(_BUNDLE, str | None),
    },
    EventName.MISMATCHED: {},
    EventName.HIT: {"key": str},
    EventName.TUNED: {"key": str},
    EventName.MISSED: {"key": str, "reason": str},
    EventName.CACHED: {"decisions": _Count, "misses": _Count},
    EventName.FOREIGN: {"compiled_under": str | None},
    EventName.UNCOVERED: {"site": str},
    EventName.OUTSIDE: {"reason": str, "calls": _Count},
    EventName.CONTRADICTED: {"option": str, "expected": str, "found": str},
    EventName.OVERRULED: {},
    EventName.BYPASSED: {"cause": str},
    EventName.UNCOMPILED: {"frame": str, "reason": str},
    EventName.CHANGED: {"frame": str},
    EventName.FAILED: {"refused": bool},
    EventName.SUMMARY: {},
}
_DEFAULTS: Final = {"misses": 0, "refused": False, **dict.fromkeys(_BUNDLE)}
# Other programs write {"event": ...} too, so only lines with warmup's event names count.
_JSON_LINE: Final = re.compile(rf'\{{"event": ?"(?:{"|".join(map(re.escape, EventName))})"')

FAILURES: Final = (
    *("miss", "uncovered", "foreign", "silent", "mismatch", "diverged", "outside", "damaged"),
)
_FOR_FOREIGN: Final = "compile these graphs again; keep graphs under keys with the table's digest"
_FOR_MISMATCH: Final = "build a table on this kind of machine (docs/how-to/upgrades.md)"
_FOR_SILENT: Final = (
    "install before the first compile, see that the table is for this model, and that what is "
    "called was compiled; uncompiled functions and bypassed runs, if any, are below"
)


@dataclass
class Run:
    """The events of one installed table in one process, counted over all log files.

    ``counts`` has the counters by what they count, as in `AuditReport`: misses by key and reason,
    and of graphs from ``cached`` their number, decisions and misses. ``choices`` has the compiled
    choices of each key, ``seen`` the sequence numbers; ``is_finished``: there is a summary.
    """

    name: str
    rank: str = ""
    digest: str = ""
    table_paths: tuple[str, ...] = ()
    table_digest: str = ""
    counts: dict[str, Counter[Any]] = field(default_factory=lambda: defaultdict(Counter))
    choices: dict[str, set[str]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    is_finished: bool = False
    is_mismatched: bool = False

    @property
    def is_silent(self) -> bool:
        is_asked = self.asked or selections(self.counts["uncovered"])
        return not (is_asked or self.counts["cached"]["decisions"] or self.is_mismatched)

    @property
    def asked(self) -> set[str]:
        missed = (key for key, _ in self.counts["misses"])
        return {*self.counts["hits"], *self.counts["tuned"], *missed}

    @property
    def label(self) -> str:
        return f"rank {self.rank} ({self.name})" if self.rank else self.name


# What a miss event says: the nearest row, how it differs, and the choice that was compiled instead.
_MissDetails = tuple[str | None, tuple[str, ...], str | None]


@dataclass
class Ledger:
    """All runs of some logs. ``first_misses`` has the first miss event of each key and reason.

    ``failed`` counts processes that could not install the table, ``refused`` those among them that
    the table is not for, and ``damaged`` the event lines that cannot be read.
    """

    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    first_misses: dict[tuple[str, str], _MissDetails] = field(default_factory=dict)
    contradictions: dict[str, None] = field(default_factory=dict)
    failed: int = 0
    damaged: int = 0
    refused: int = 0
    _failures: set[tuple[str, int]] = field(default_factory=set)

    def read(self, file: BinaryIO, is_cut: Callable[[], bool] = lambda: False) -> None:
        lines = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        while not is_cut() and (line := lines.readline(MAX_LINE)):
            _, marker, rest = line.partition(f"{LOG_MARKER} ")
            text = line if _JSON_LINE.match(line) else rest
            if text is rest and not (marker and rest.startswith("{")):
                continue
            try:
                self._add(json.JSONDecoder().raw_decode(text)[0])
            except (KeyError, TypeError, ValueError, RecursionError):
                self.damaged += 1
        lines.detach()

    def _add(self, record: Mapping[str, Any]) -> None:
        if record["schema"] != EVENT_SCHEMA:
            raise ValueError(record["schema"])
        name = record["event"]
        whole = {**_DEFAULTS, **record}
        wanted = {**_IDENTITY, **_FIELDS[name]}
        fields = {each: msgspec.convert(whole[each], type_) for each, type_ in wanted.items()}
        identity = (fields["run"], fields["pid"])
        if name == EventName.FAILED:
            if identity not in self._failures:
                self._failures.add(identity)
                self.failed += 1
                self.refused += fields["refused"]
            return
        digest, rank = (msgspec.convert(record.get(each, ""), str) for each in ("digest", "rank"))
        if identity not in self.runs:
            self.runs[identity] = Run("{}/{}".format(*identity))
        run = self.runs[identity]
        run.digest, run.rank = digest or run.digest, rank or run.rank
        if fields["seq"] not in run.seen:
            run.seen.add(fields["seq"])
            self._count(run, record, fields)

    def _count(self, run: Run, record: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        name, counts = record["event"], run.counts
        if name == EventName.INSTALLED:
            run.table_paths, run.table_digest = fields["paths"], fields["table"]
            if path := fields["bundle"]:
                refused = fields["bundle_refused"]
                outcome = f"is not used: {refused}" if refused else "is used"
                counts["bundles"][f"{path} {outcome}"] += 1
        elif name == EventName.CACHED:
            number = {"graphs": 1, "decisions": fields["decisions"], "misses": fields["misses"]}
            counts["cached"].update(number)
        elif name == EventName.OUTSIDE:
            # Emitted at the first call, the second, the fourth and so on, with the number of calls
            # so far: add the calls since the event before.
            counts["outside"][fields["reason"]] += fields["calls"] - fields["calls"] // 2
        elif name == EventName.CONTRADICTED:
            line = "{option}: table {expected}, here {found}".format_map(fields)
            self.contradictions[line] = None
        elif name == EventName.MISSED:
            miss = (fields["key"], fields["reason"])
            counts["misses"][miss] += 1
            self.first_misses.setdefault(miss, _details_of(record))
        elif name in COUNTERS:
            counter, text = count_of(name, fields)
            counts[counter][text] += 1
        choice = record.get("choice" if name == EventName.MISSED else "winner")
        if "key" in fields and isinstance(choice, str):  # strict serving compiles nothing on a miss
            run.choices.setdefault(fields["key"], set()).add(sys.intern(choice))
        run.is_mismatched |= name == EventName.MISMATCHED
        run.is_finished |= name == EventName.SUMMARY


def _details_of(record: Mapping[str, Any]) -> _MissDetails:
    nearest, choice = (_interned(record.get(name)) for name in ("nearest", "choice"))
    texts = record.get("differs")
    differs = map(_interned, texts if isinstance(texts, list) else ())
    return nearest, tuple(each for each in differs if each is not None), choice


def _interned(value: Any) -> str | None:
    return sys.intern(value) if isinstance(value, str) else None


def read_logs(logs: Sequence[str | Path]) -> Ledger:
    """Return the runs in *logs*; lines without an event are skipped.

    Raises:
        SettingsError: a log cannot be read, or is neither a regular file nor a pipe of the shell.
    """
    ledger = Ledger()
    for log in map(Path, logs):
        try:
            # The pipe behind /dev/stdin or the shell's ``<(COMMAND)`` has no path of its own, and
            # ends with the command; a FIFO or a device may never end.
            is_pipe = log.is_fifo() and not Path(os.path.realpath(log)).exists()
            with log.open("rb") if is_pipe else open_regular(log) as file:
                ledger.read(file)
        except (OSError, ValueError) as error:
            problem = f"the log {log} cannot be read: {problem_in(error)}"
            raise SettingsError(problem, remedy_for(error, "name the files to audit")) from error
    return ledger


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
    """The runs that disagree on ``key``, or without one on the table, by choice or digest."""

    key: str | None
    digest: str | None
    choices: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The events of all logs, counted. A *run* is one installed table in one process.

    - ``hits`` and ``tuned`` count by key, ``uncovered`` by site. ``by_digest`` has the same
      counts for each table, as numbers where they are by key here, and ``misses`` by reason.
    - ``cached_misses`` counts the misses among the ``cached_decisions`` of graphs from cache.
    - ``foreign`` counts loaded graphs that were compiled under another table, by its digest, or
      ``none`` for no table; refused graphs are among them.
    - ``outside`` counts, by reason, the calls that no artifact of `warmup.compile` served, up to
      the last event of each reason.
    - ``silent`` has the runs without any decision, ``diverged`` the disagreements between runs of
      one table or between ranks, ``unfinished`` the runs without a summary: still running, or ended
      by a signal, which a clean stop of a server is too.
    - ``failed`` counts processes that could not install the table, ``mismatch`` those that the
      table is not for: refused, or gone on as without a table, and then no run.
    - ``bypassed`` counts runs with graphs that did not ask the table, by cause, ``uncompiled``
      frames with torch's reason, ``changed`` how often frozen weights were changed, by frame,
      ``bundles`` what became of the bundle.
    - ``unused`` has the rows that no run asked for, None when no table could be read, or when some
      may be in use by graphs from a cache, whose decisions have no keys in the log.
    - ``invariance`` says whether the compiled kernels keep the promise of an invariant table; None
      for other tables, and where ``unused`` is None.
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
    by_digest: Mapping[str, Mapping[str, Any]]
    damaged: int
    unfinished: tuple[str, ...] = ()
    failed: int = 0
    mismatch: int = 0
    bypassed: Mapping[str, int] = field(default_factory=dict)
    uncompiled: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    bundles: Mapping[str, int] = field(default_factory=dict)
    invariance: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.runs == self.failed == self.mismatch == self.damaged == 0

    @property
    def advice(self) -> tuple[str, ...]:
        misses = [(miss.reason, miss.differs) for miss in self.misses]
        misses += [(MissReason.CACHED_MISS.value, ())] if self.cached_misses else []
        advised = advice(misses)
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
        return sum(miss.count for miss in self.misses)

    @property
    def reasons(self) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for miss in self.misses:
            counts[miss.reason] += miss.count
        return dict(counts)

    def failures(self, wanted: Iterable[str]) -> tuple[str, ...]:
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
    """Return the counts of all events in *logs*, files of JSON lines or a server's text.

    Unused rows are those of *table* or, without it, of the files that the runs installed, if these
    still have the installed digest.

    Raises:
        SettingsError: a log cannot be read.
        TableError: *table* is given and cannot be read.
    """
    ledger = read_logs(logs)
    tables = _tables_of(ledger, table)
    unused = None if tables is None else _unused(ledger, tables)
    cached = _sum(tuple(ledger.runs.values()), "cached")
    is_known = not unused or not cached["decisions"]
    report = report_of(ledger, unused if is_known else None)
    promises = [promise for one in tables or () if (promise := invariance_of(one)) is not None]
    return replace(report, invariance=_kept(promises[0], report)) if promises else report


def _kept(promise: Invariance, report: AuditReport) -> str:
    others = sum(report.foreign.values()) + sum(report.tuned.values())
    broken = [
        (report.miss_count + report.cached_misses, "decision without a row"),
        (sum(report.uncovered.values()), "uncovered decision"),
        (others, "graph or decision of another table"),
        (len(promise.broken), "weight with several digests"),
    ]
    faults = [counted(count, what) for count, what in broken if count]
    return f"broken by {', '.join(faults)}" if faults else f"kept: {promise}"


_BY_TEXT: Final = ("hits", "tuned", "uncompiled", "changed", "bundles")


def report_of(ledger: Ledger, unused: tuple[str, ...] | None = None) -> AuditReport:
    """Return the counts of *ledger*; no file is read. *unused* is as in `AuditReport`."""
    runs = tuple(ledger.runs.values())
    digests = sorted({run.digest for run in runs})
    misses = sorted(_sum(runs, "misses").items(), key=lambda item: natural_order(item[0][0]))
    counts = _summed(runs)
    return AuditReport(
        **{
            **counts,
            **{name: dict(_sum(runs, name)) for name in _BY_TEXT},
            "misses": tuple(
                Miss(key, reason, count, *ledger.first_misses[key, reason])
                for (key, reason), count in misses
            ),
            "mismatch": ledger.refused + counts["mismatch"],
        },
        digests=tuple(filter(None, digests)),
        contradictions=tuple(ledger.contradictions),
        silent=tuple(run.name for run in _silent(runs)),
        diverged=(*_ranks_apart(runs), *_choices_apart(runs)),
        unused=unused,
        by_digest={
            digest: _counts([run for run in runs if run.digest == digest]) for digest in digests
        },
        damaged=ledger.damaged,
        # A forked child has no install of its own.
        unfinished=tuple(run.name for run in runs if run.table_digest and not run.is_finished),
        failed=ledger.failed,
        bypassed=dict(Counter(cause for run in runs for cause in run.counts["bypassed"])),
    )


def _sum(runs: Sequence[Run], name: str) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for run in runs:
        total.update(run.counts[name])
    return total


def _summed(runs: Sequence[Run]) -> dict[str, Any]:
    cached = _sum(runs, "cached")
    return {
        "runs": sum(not run.is_mismatched for run in runs),
        "mismatch": sum(run.is_mismatched for run in runs),
        **{name: dict(_sum(runs, name)) for name in ("uncovered", "foreign", "outside")},
        "from_cache": cached["graphs"],
        **{f"cached_{name}": cached[name] for name in ("decisions", "misses")},
    }


def _counts(runs: Sequence[Run]) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    for (_, reason), count in _sum(runs, "misses").items():
        reasons[reason] += count
    totals = {name: _sum(runs, name).total() for name in ("hits", "tuned", "changed")}
    return {**_summed(runs), **totals, "silent": len(_silent(runs)), "misses": dict(reasons)}


def _silent(runs: Sequence[Run]) -> list[Run]:
    """Return the silent ones of *runs*; not a parent whose fork, a run of the same id, asked."""
    asked = {run.name.rpartition("/")[0] for run in runs if not run.is_silent}
    return [run for run in runs if run.is_silent and run.name.rpartition("/")[0] not in asked]


def _ranks_apart(runs: Sequence[Run]) -> list[Divergence]:
    tables: dict[str, set[str]] = {}
    holders: dict[str, list[str]] = {}
    for run in (run for run in runs if run.rank and run.digest):
        tables.setdefault(run.rank, set()).add(run.digest)
        holders.setdefault(run.digest, []).append(run.label)
    if len({frozenset(digests) for digests in tables.values()}) <= 1:
        return []
    return [Divergence(None, None, {digest: tuple(holders[digest]) for digest in sorted(holders)})]


def _choices_apart(runs: Sequence[Run]) -> list[Divergence]:
    runs_by_key: dict[tuple[str, str], list[Run]] = {}
    for run in runs if len(runs) > 1 else ():
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


def _tables_of(ledger: Ledger, named: str | Path | None) -> list[Table] | None:
    if named is not None:
        return [read(Path(named))]
    found: list[Table] = []
    for run in ledger.runs.values():
        if run.is_mismatched:
            continue
        try:
            tables = [read(Path(path)) for path in run.table_paths if Path(path).is_file()]
        except (OSError, TableError, ValueError):  # a path that no file has, or no table
            return None
        union = combine(tables)[0] if tables else None
        if union is None or digest_of(union) != run.table_digest:
            return None
        found.append(union)
    return found or None


def _unused(ledger: Ledger, tables: Sequence[Table]) -> tuple[str, ...]:
    rows = {key for table in tables for key in table.rows if kind_of(key).is_asked}
    for run in ledger.runs.values():
        if not run.is_mismatched:
            rows -= run.asked
    return tuple(sorted(rows, key=natural_order))


# `MissedProblem` and the misses document: the problems that no row answered while serving.

MISSES_SCHEMA: Final = 1
TUNED: Final = "tuned"  # the reason of a problem that was measured while a program was recorded
_MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
_MAX_KEY: Final = 4096
_MAX_REASON_LENGTH: Final = 64
_MAX_DIGESTS: Final = 10_000
# The reasons of keys that have a row which cannot be used.
_STALE: Final = (
    *(MissReason.TEMPLATE_ABSENT, MissReason.TEMPLATE_CHANGED, MissReason.CHOICE_REJECTED),
    MissReason.UNTRUSTED,
)
_Word = Annotated[str, Meta(max_length=_MAX_REASON_LENGTH)]


class MissedProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A problem that no row answered, with the reason and the number of misses."""

    key: Annotated[str, Meta(max_length=_MAX_KEY)]
    kind: _Word
    reason: _Word
    count: Annotated[int, Meta(ge=1, le=_MAX_COUNT)]

    @property
    def is_stale(self) -> bool:
        """Whether the table has a row for the key that could not be used."""
        return self.reason in _STALE


class _Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    digests: Annotated[list[_Word], Meta(max_length=_MAX_DIGESTS)]
    problems: list[MissedProblem]
    schema: Annotated[int, Meta(ge=1, le=MISSES_SCHEMA)]


def encode_misses(report: AuditReport) -> str:
    """Return the misses and tuned problems of *report*, cut to what `read_misses` accepts."""
    counts: Counter[tuple[str, str]] = Counter()
    for miss in report.misses:
        problem = printable(miss.key)[:_MAX_KEY], printable(miss.reason)[:_MAX_REASON_LENGTH]
        counts[problem] += miss.count
    for key, count in report.tuned.items():
        counts[printable(key)[:_MAX_KEY], TUNED] += count
    return encode_problems(counts, report.digests)


def encode_problems(counts: Mapping[tuple[str, str], int], digests: Iterable[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (natural_order(item[0][0]), item[0]))
    problems = [
        MissedProblem(key, kind_of(key).name, reason, min(count, _MAX_COUNT))
        for (key, reason), count in ordered
    ]
    words = sorted({printable(digest)[:_MAX_REASON_LENGTH] for digest in digests})
    document: dict[str, Any] = {"schema": MISSES_SCHEMA, "digests": words[:_MAX_DIGESTS]}
    document["problems"] = msgspec.to_builtins(problems)
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def read_misses(path: str | Path) -> tuple[MissedProblem, ...]:
    """Return the problems of the document *path*; a SettingsError has the JSON pointer."""
    remedy = "write it with `warmup audit LOG... --misses-out FILE`"
    name = f"--problems {shown(path)}"
    try:
        with open_regular(Path(path)) as file:
            if os.fstat(file.fileno()).st_size > _MAX_DOCUMENT_BYTES:
                raise SettingsError(f"{name}: larger than {_MAX_DOCUMENT_BYTES} bytes", remedy)  # noqa: TRY301  in one try
            document, _ = read_json(file.read(), _Document, str(path))
        return _problems(document, str(path))
    except SettingsError:
        raise
    except TableFormatError as error:
        at = f" at {shown(error.pointer)}" if error.pointer else ""
        problem = f"{name}: not a misses document{at}: {shown(error.reason)}"
        raise SettingsError(problem, remedy) from None
    except (OSError, ValueError) as error:  # such as a path with a NUL character
        problem = f"{name}: cannot be read: {problem_in(error)}"
        raise SettingsError(problem, remedy_for(error, remedy)) from error


def _problems(document: _Document, path: str) -> tuple[MissedProblem, ...]:
    check_texts(document.digests, path, "digests")
    problems: dict[tuple[str, str], MissedProblem] = {}
    for number, each in enumerate(document.problems):
        place = "problems", number
        check_texts({"key": each.key, "reason": each.reason}, path, *place)
        if each.kind not in KINDS or each.kind != kind_of(each.key).name:
            reason = f"the key is of kind {kind_of(each.key).name}"
            raise TableFormatError(path, pointer_of(*place, "kind"), reason)
        if problems.setdefault((each.key, each.reason), each) is not each:
            reason = f"problem {number} is a repetition"
            raise TableFormatError(path, pointer_of("problems"), reason)
    return tuple(problems.values())


# `expose`: an audit as Prometheus metrics. `warmup.metrics` has those of this process; a name that
# both write has the same meaning.

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\""})
# Metric, help, name in ``by_digest``, and the label of its keys where it is a mapping. A metric
# whose name ends in ``_total`` is a counter, any other a gauge.
METRICS: Final = (
    ("runs", "Installed tables, each in one process.", "runs", None),
    ("silent_runs", "Runs without any decision.", "silent", None),
    ("mismatched_runs", "Processes that the table is not for.", "mismatch", None),
    ("hits_total", "Decisions answered by a row.", "hits", None),
    ("misses_total", "Decisions answered by no row.", "misses", "reason"),
    ("tuned_total", "Problems measured while serving.", "tuned", None),
    ("uncovered_total", "Measurements of no row kind.", "uncovered", "site"),
    ("cached_graphs_total", "Graphs from inductor's caches.", "from_cache", None),
    ("cached_decisions_total", "Decisions in those graphs.", "cached_decisions", None),
    ("cached_misses_total", "Of those, answered by no row.", "cached_misses", None),
    ("foreign_graphs_total", "Graphs of another table.", "foreign", "compiled_under"),
    ("weight_changes_total", "Graphs whose frozen weights were changed.", "changed", None),
    ("outside_total", "Calls that no artifact served.", "outside", "reason"),
)


def expose(report: AuditReport) -> str:
    """Return *report* in Prometheus' text format 0.0.4, in a fixed order.

    Counts of one table have its digest as a label. ``warmup_unused_rows`` has no sample when the
    unused rows are unknown.
    """
    lines: list[str] = []
    for name, help_text, count, label in METRICS:
        lines += _header(name, help_text)
        for digest, counts in report.by_digest.items():
            for key, value in by_label(counts[count], label).items():
                labels = {"digest": digest} if label is None else {"digest": digest, label: key}
                lines.append(_sample(name, labels, value))
    totals = (
        ("unused_rows", "Rows that no run asked for.", report.unused),
        ("diverged", "Keys and tables on which runs disagree.", report.diverged),
        ("contradicted_options", "Options that differ from the policy.", report.contradictions),
        ("unfinished_runs", "Runs without a summary: killed, or running.", report.unfinished),
        ("failed_installs", "Processes that could not install the table.", report.failed),
        ("damaged_lines", "Event lines that cannot be read.", report.damaged),
    )
    for name, help_text, found in totals:
        lines += _header(name, help_text)
        if found is not None:
            lines.append(_sample(name, {}, found if isinstance(found, int) else len(found)))
    return "".join(f"{line}\n" for line in lines)


def by_label(value: Any, label: str | None) -> Mapping[str, float]:
    """Return the counts by key, sorted, or without a *label* their total under no key."""
    if label is not None:
        return dict(sorted(value.items()))
    return {"": sum(value.values()) if isinstance(value, Mapping) else value}


def _header(name: str, help_text: str) -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return [f"# HELP warmup_{name} {help_text}", f"# TYPE warmup_{name} {kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    # Texts from logs are not trusted: some readers end a line at more characters than LF.
    pairs = (f'{label}="{printable(text).translate(_ESCAPES)}"' for label, text in labels.items())
    return f"warmup_{name}{'{' + ','.join(pairs) + '}' if labels else ''} {value}"
