"""Reading logs: what each run said, from JSON lines or ordinary server logs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warmup.core.errors import SettingsError
from warmup.core.events import EVENT_SCHEMA, LOG_MARKER, EventName

MAX_LINE: Final = 1_000_000


@dataclass
class Run:
    """The events of one installed table in one process, whichever files they came from.

    ``choices`` are those that were compiled for each key; ``misses`` are counted by key and reason;
    ``outside`` counts calls that no artifact served, by reason.
    """

    name: str
    rank: str = ""
    digest: str = ""
    table_paths: tuple[str, ...] = ()
    table_digest: str = ""
    hits: Counter[str] = field(default_factory=Counter)
    tuned: Counter[str] = field(default_factory=Counter)
    misses: Counter[tuple[str, str]] = field(default_factory=Counter)
    uncovered: Counter[str] = field(default_factory=Counter)
    choices: dict[str, set[str]] = field(default_factory=dict)
    from_cache: int = 0
    cached_decisions: int = 0
    cached_misses: int = 0
    outside: Counter[str] = field(default_factory=Counter)

    @property
    def is_silent(self) -> bool:
        """True without a decision, its own or that of a cached graph."""
        return not (self.hits or self.tuned or self.misses or self.cached_decisions)

    @property
    def label(self) -> str:
        """The name, behind the rank if it has one."""
        return f"rank {self.rank} ({self.name})" if self.rank else self.name


# What is read of each event, beside run, pid and seq.
_READ_FIELDS: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    EventName.INSTALLED: {"paths": lambda paths: tuple(map(str, paths)), "table": str},
    EventName.HIT: {"key": str},
    EventName.TUNED: {"key": str},
    EventName.MISSED: {"key": str, "reason": str},
    EventName.CACHED: {"decisions": int, "misses": int},
    EventName.UNCOVERED: {"site": str},
    EventName.OUTSIDE: {"reason": str, "calls": int},
    EventName.CONTRADICTED: {"option": str, "expected": str, "found": str},
    EventName.OVERRULED: {},
    EventName.SUMMARY: {},
}
_ABSENT: Final = {"misses": 0}  # in logs of warmup 0.1


@dataclass
class Ledger:
    """All runs of the logs. ``first_misses`` holds the first event of each key and reason."""

    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    first_misses: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    contradictions: dict[str, None] = field(default_factory=dict)
    damaged: int = 0
    _seen: set[tuple[str, int, int]] = field(default_factory=set)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one event; the same event from a second file counts once.

        Raises:
            KeyError, OverflowError, TypeError, ValueError: it is damaged, and was not counted.
        """
        facts = _facts(record)
        identity = (facts["run"], facts["pid"], facts["seq"])
        if identity in self._seen:
            return
        self._seen.add(identity)
        run = self.runs.setdefault(identity[:2], Run(f"{identity[0]}/{identity[1]}"))
        run.digest = str(record.get("digest", run.digest))
        run.rank = str(record.get("rank", run.rank))
        name = record["event"]
        if name == EventName.INSTALLED:
            run.table_paths, run.table_digest = facts["paths"], facts["table"]
        elif name == EventName.CACHED:
            run.from_cache += 1
            run.cached_decisions += facts["decisions"]
            run.cached_misses += facts["misses"]
        elif name == EventName.UNCOVERED:
            run.uncovered[facts["site"]] += 1
        elif name == EventName.OUTSIDE:
            # Told at the first call, the second, the fourth and so on: add those since the last.
            run.outside[facts["reason"]] += facts["calls"] - facts["calls"] // 2
        elif name == EventName.CONTRADICTED:
            said = "{option}: table {expected}, here {found}".format_map(facts)
            self.contradictions[said] = None
        elif name in (EventName.HIT, EventName.TUNED):
            (run.hits if name == EventName.HIT else run.tuned)[facts["key"]] += 1
            _note_choice(run, facts["key"], record.get("winner"))
        elif name == EventName.MISSED:
            fact = (facts["key"], facts["reason"])
            run.misses[fact] += 1
            self.first_misses.setdefault(fact, record)
            _note_choice(run, facts["key"], record.get("choice"))


def read_logs(logs: Sequence[str | Path]) -> Ledger:
    """Return what stands in *logs*; lines that are nobody's event are skipped.

    Raises:
        SettingsError: a log cannot be read.
    """
    ledger = Ledger()
    for log in logs:
        for record in _records(Path(log)):
            try:
                ledger.add(record)
            except (KeyError, OverflowError, TypeError, ValueError):
                ledger.damaged += 1
    return ledger


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Callable[[Any], Any]] = {
        "run": str,
        "pid": int,
        "seq": int,
        **_READ_FIELDS[record["event"]],
    }
    record = {**_ABSENT, **record}
    return {name: read_field(record[name]) for name, read_field in wanted.items()}


def _note_choice(run: Run, key: str, choice: Any) -> None:
    if isinstance(choice, str):  # strict serving compiles nothing on a miss
        run.choices.setdefault(key, set()).add(choice)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in *path*, an empty one for each that cannot be read."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as file:
            while line := file.readline(MAX_LINE):
                text = _event_text(line)
                if text is not None:
                    yield _record(text)
    except OSError as error:
        raise SettingsError(
            f"the log {path} cannot be read: {error.strerror}", "name the files to audit"
        ) from error


def _record(text: str) -> dict[str, Any]:
    try:
        record, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    known = isinstance(record, dict) and record.get("schema") == EVENT_SCHEMA
    return record if known else {}


# Other programs write {"event": ...} too; only warmup's own names are taken for its events.
_JSON_LINE: Final = re.compile(rf'\{{"event": ?"(?:{"|".join(map(re.escape, EventName))})"')


def _event_text(line: str) -> str | None:
    if _JSON_LINE.match(line):
        return line
    _, marker, rest = line.partition(f"{LOG_MARKER} ")
    return rest if marker and rest.startswith("{") else None
