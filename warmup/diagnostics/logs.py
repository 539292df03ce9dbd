"""`read_logs`: the events of each run, from JSON lines or ordinary server logs.

Logs are not trusted: damaged events are counted, and other lines are skipped.
"""

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
    """The events of one installed table in one process, counted over all log files.

    ``choices`` has the compiled choices of each key. ``misses`` counts by key and reason,
    ``uncovered`` by site, and ``outside`` calls that no artifact served, by reason. ``bypassed``
    has the causes why graphs did not ask the table, and ``is_finished`` says that there is a
    summary.
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
    bypassed: set[str] = field(default_factory=set)
    is_finished: bool = False

    @property
    def is_unfinished(self) -> bool:
        """Whether the process was killed before its summary, or still runs; no forked child is."""
        return bool(self.table_digest) and not self.is_finished

    @property
    def is_silent(self) -> bool:
        """Whether there is no decision at all, not even one of a graph from cache."""
        return not (self.hits or self.tuned or self.misses or self.cached_decisions)

    @property
    def label(self) -> str:
        """The name, after the rank if there is one."""
        return f"rank {self.rank} ({self.name})" if self.rank else self.name


# The fields that each event must have, beside run, pid and seq.
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
    EventName.BYPASSED: {"cause": str},
    EventName.FAILED: {"refused": bool},
    EventName.SUMMARY: {},
}
_DEFAULTS: Final = {"misses": 0, "refused": False}  # absent in logs of warmup 0.1


@dataclass
class Ledger:
    """All runs of some logs. ``first_misses`` has the first miss event of each key and reason.

    ``failed`` counts processes that could not install the table, ``refused`` those among them that
    the table is not for.
    """

    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    first_misses: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    contradictions: dict[str, None] = field(default_factory=dict)
    damaged: int = 0
    failed: int = 0
    refused: int = 0
    _seen: set[tuple[str, int, int]] = field(default_factory=set)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count an event, unless it was counted before from another file.

        Raises:
            KeyError, OverflowError, TypeError, ValueError: the event is damaged, and not counted.
        """
        fields = _fields(record)
        identity = (fields["run"], fields["pid"], fields["seq"])
        if identity in self._seen:
            return
        self._seen.add(identity)
        if record["event"] == EventName.FAILED:
            self.failed += 1
            self.refused += fields["refused"]
            return
        run = self.runs.setdefault(identity[:2], Run(f"{identity[0]}/{identity[1]}"))
        run.digest = str(record.get("digest", run.digest))
        run.rank = str(record.get("rank", run.rank))
        self._count(run, record, fields)

    def _count(self, run: Run, record: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        name = record["event"]
        if name == EventName.INSTALLED:
            run.table_paths, run.table_digest = fields["paths"], fields["table"]
        elif name in (EventName.SUMMARY, EventName.BYPASSED):
            run.is_finished |= name == EventName.SUMMARY
            run.bypassed |= {fields["cause"]} if name == EventName.BYPASSED else set()
        elif name == EventName.CACHED:
            run.from_cache += 1
            run.cached_decisions += fields["decisions"]
            run.cached_misses += fields["misses"]
        elif name == EventName.UNCOVERED:
            run.uncovered[fields["site"]] += 1
        elif name == EventName.OUTSIDE:
            # Emitted at the first call, the second, the fourth and so on, with the number of calls
            # so far: add the calls since the event before.
            run.outside[fields["reason"]] += fields["calls"] - fields["calls"] // 2
        elif name == EventName.CONTRADICTED:
            line = "{option}: table {expected}, here {found}".format_map(fields)
            self.contradictions[line] = None
        elif name in (EventName.HIT, EventName.TUNED):
            (run.hits if name == EventName.HIT else run.tuned)[fields["key"]] += 1
            _note_choice(run, fields["key"], record.get("winner"))
        elif name == EventName.MISSED:
            miss = (fields["key"], fields["reason"])
            run.misses[miss] += 1
            self.first_misses.setdefault(miss, record)
            _note_choice(run, fields["key"], record.get("choice"))


def read_logs(logs: Sequence[str | Path]) -> Ledger:
    """Return the runs in *logs*; lines without an event are skipped.

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


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Callable[[Any], Any]] = {
        "run": str,
        "pid": int,
        "seq": int,
        **_READ_FIELDS[record["event"]],
    }
    record = {**_DEFAULTS, **record}
    return {name: read_field(record[name]) for name, read_field in wanted.items()}


def _note_choice(run: Run, key: str, choice: Any) -> None:
    if isinstance(choice, str):  # strict serving compiles nothing on a miss
        run.choices.setdefault(key, set()).add(choice)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in *path*, and an empty record for each event that cannot be read."""
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
    is_event = isinstance(record, dict) and record.get("schema") == EVENT_SCHEMA
    return record if is_event else {}


# Other programs write {"event": ...} too, so only lines with warmup's event names count.
_JSON_LINE: Final = re.compile(rf'\{{"event": ?"(?:{"|".join(map(re.escape, EventName))})"')


def _event_text(line: str) -> str | None:
    if _JSON_LINE.match(line):
        return line
    _, marker, rest = line.partition(f"{LOG_MARKER} ")
    return rest if marker and rest.startswith("{") else None
