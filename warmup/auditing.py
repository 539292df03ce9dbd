"""`audit`: what happened at serving, from JSON lines or ordinary server logs. Floor 2; no torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warmup.errors import SettingsError, TableError
from warmup.events import EVENT_SCHEMA, LOG_MARKER, EventName
from warmup.kinds import natural_order
from warmup.table.codec import digest_of
from warmup.table.merge import combine
from warmup.table.store import read

MAX_LINE: Final = 1_000_000
FAILURES: Final = ("miss", "uncovered", "silent")


@dataclass(frozen=True, slots=True)
class Miss:
    """One problem that no row answered, with how often, why, and the nearest row."""

    key: str
    reason: str
    count: int
    nearest: str | None
    differs: tuple[str, ...]
    choice: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Everything the logs say. A *run* is one installed table in one process.

    ``unused`` are the table's rows that no run asked for, None when no table could be read;
    ``silent`` are the runs without a decision, their own or that of a cached graph, and
    ``damaged`` counts lines that carry the marker but cannot be read.
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
    silent: tuple[str, ...]
    unused: tuple[str, ...] | None
    damaged: int

    @property
    def miss_count(self) -> int:
        """How many decisions no row answered."""
        return sum(miss.count for miss in self.misses)

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many misses there were, by reason."""
        counts: Counter[str] = Counter()
        for miss in self.misses:
            counts[miss.reason] += miss.count
        return dict(counts)

    def failures(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Return which of *wanted* (``miss``, ``uncovered``, ``silent``) this audit found."""
        found = {
            "miss": bool(self.misses),
            "uncovered": bool(self.uncovered),
            "silent": bool(self.silent) or self.runs == 0,
        }
        return tuple(name for name in wanted if found[name])


@dataclass
class _Run:
    """The events of one run, whichever file they came from."""

    name: str
    digest: str = ""
    table_paths: tuple[str, ...] = ()
    table_digest: str = ""
    asked: int = 0
    from_cache: int = 0
    cached_decisions: int = 0


# What is read of each event, beside run, pid and seq.
_FIELDS: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    EventName.INSTALLED: {"paths": lambda paths: tuple(map(str, paths)), "table": str},
    EventName.HIT: {"key": str},
    EventName.TUNED: {"key": str},
    EventName.MISSED: {"key": str, "reason": str},
    EventName.CACHED: {"decisions": int},
    EventName.UNCOVERED: {"site": str},
    EventName.CONTRADICTED: {"option": str, "expected": str, "found": str},
    EventName.SUMMARY: {},
}


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's typed fields.

    Raises:
        KeyError, OverflowError, TypeError, ValueError: it is damaged.
    """
    wanted: dict[str, Callable[[Any], Any]] = {
        "run": str,
        "pid": int,
        "seq": int,
        **_FIELDS[record["event"]],
    }
    return {name: read_field(record[name]) for name, read_field in wanted.items()}


@dataclass
class _Ledger:
    runs: dict[tuple[str, int], _Run] = field(default_factory=dict)
    seen: set[tuple[str, int, int]] = field(default_factory=set)
    hits: Counter[str] = field(default_factory=Counter)
    tuned: Counter[str] = field(default_factory=Counter)
    misses: Counter[tuple[str, str]] = field(default_factory=Counter)
    miss_facts: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    uncovered: Counter[str] = field(default_factory=Counter)
    contradictions: dict[str, None] = field(default_factory=dict)
    damaged: int = 0

    def add(self, record: dict[str, Any]) -> None:
        """Count one event; the same event from a second file counts once."""
        facts = _facts(record)  # complains before anything is counted
        identity = (facts["run"], facts["pid"], facts["seq"])
        if identity in self.seen:
            return
        self.seen.add(identity)
        run = self.runs.setdefault(identity[:2], _Run(f"{identity[0]}/{identity[1]}"))
        run.digest = str(record.get("digest", run.digest))
        name = record["event"]
        if name == EventName.INSTALLED:
            run.table_paths, run.table_digest = facts["paths"], facts["table"]
        elif name == EventName.CACHED:
            run.from_cache += 1
            run.cached_decisions += facts["decisions"]
        elif name == EventName.UNCOVERED:
            self.uncovered[facts["site"]] += 1
        elif name == EventName.CONTRADICTED:
            said = "{option}: table {expected}, here {found}".format_map(facts)
            self.contradictions[said] = None
        elif name in (EventName.HIT, EventName.TUNED):
            run.asked += 1
            (self.hits if name == EventName.HIT else self.tuned)[facts["key"]] += 1
        elif name == EventName.MISSED:
            run.asked += 1
            fact = (facts["key"], facts["reason"])
            self.misses[fact] += 1
            self.miss_facts.setdefault(fact, record)


def audit(logs: Sequence[str | Path], *, table: str | Path | None = None) -> AuditReport:
    """Return what *logs* say: JSON lines, or text logs with ``warmup-event`` lines among others.

    Rows never used are found in *table*, or in the file that a run says it installed if that file
    still has the installed digest.

    Raises:
        SettingsError: a log cannot be read.
        TableError: *table* was named and cannot be read.
    """
    ledger = _Ledger()
    for log in logs:
        for record in _records(Path(log), ledger):
            try:
                ledger.add(record)
            except (KeyError, OverflowError, TypeError, ValueError):
                ledger.damaged += 1
    return AuditReport(
        runs=len(ledger.runs),
        digests=tuple(sorted({run.digest for run in ledger.runs.values() if run.digest})),
        hits=dict(ledger.hits),
        misses=tuple(
            _miss(key, reason, count, ledger.miss_facts[key, reason])
            for (key, reason), count in sorted(
                ledger.misses.items(), key=lambda m: natural_order(m[0][0])
            )
        ),
        uncovered=dict(ledger.uncovered),
        tuned=dict(ledger.tuned),
        contradictions=tuple(ledger.contradictions),
        from_cache=sum(run.from_cache for run in ledger.runs.values()),
        cached_decisions=sum(run.cached_decisions for run in ledger.runs.values()),
        silent=tuple(
            run.name for run in ledger.runs.values() if not run.asked and not run.cached_decisions
        ),
        unused=_unused(ledger, table),
        damaged=ledger.damaged,
    )


def _records(path: Path, ledger: _Ledger) -> Iterator[dict[str, Any]]:
    """Yield the events in *path*; other lines are skipped, unreadable events are counted."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as file:
            while line := file.readline(MAX_LINE):
                text = _event_text(line)
                if text is None:
                    continue
                try:
                    record, _ = json.JSONDecoder().raw_decode(text)
                    known = isinstance(record, dict) and record.get("schema") == EVENT_SCHEMA
                except (ValueError, RecursionError):
                    known = False
                if known:
                    yield record
                else:
                    ledger.damaged += 1
    except OSError as error:
        raise SettingsError(
            f"the log {path} cannot be read: {error.strerror}", "name the files to audit"
        ) from error


# Other programs write {"event": ...} too; only warmup's own names are taken for its events.
_JSON_LINE: Final = re.compile(rf'\{{"event": ?"(?:{"|".join(map(re.escape, EventName))})"')


def _event_text(line: str) -> str | None:
    if _JSON_LINE.match(line):
        return line
    _, marker, rest = line.partition(f"{LOG_MARKER} ")
    return rest if marker and rest.startswith("{") else None


def _miss(key: str, reason: str, count: int, record: Mapping[str, Any]) -> Miss:
    nearest, choice, differs = record.get("nearest"), record.get("choice"), record.get("differs")
    return Miss(
        key=key,
        reason=reason,
        count=count,
        nearest=nearest if isinstance(nearest, str) else None,
        differs=tuple(map(str, differs)) if isinstance(differs, list) else (),
        choice=choice if isinstance(choice, str) else None,
    )


def _unused(ledger: _Ledger, named: str | Path | None) -> tuple[str, ...] | None:
    asked = {*ledger.hits, *ledger.tuned, *(key for key, _ in ledger.misses)}
    if named is not None:
        return _sorted_keys(read(Path(named)).rows.keys() - asked)
    rows: set[str] = set()
    for run in ledger.runs.values():
        try:
            tables = [read(Path(path)) for path in run.table_paths]
        except TableError:
            return None
        union = combine(tables)[0] if tables else None
        if union is None or digest_of(union) != run.table_digest:
            return None
        rows |= union.rows.keys()
    return _sorted_keys(rows - asked) if ledger.runs else None


def _sorted_keys(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(keys, key=natural_order))
