"""`read_logs`: the events of each run, from JSON lines or ordinary server logs.

Logs are not trusted: each event is checked, damaged events are counted, other lines are skipped.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NamedTuple

import msgspec
from msgspec import Meta

from warmup.core.errors import SettingsError
from warmup.core.events import EVENT_SCHEMA, LOG_MARKER, NO_TABLE, EventName, selections
from warmup.core.files import open_regular
from warmup.core.text import remedy_for

_MAX_COUNT: Final = 10**15


# Events of earlier builds of warmup 0.1, which no run emits any more: skipped, and no damage.
_RETIRED: Final = frozenset({"lookup.predicted"})
_Count = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
# The fields that each event must have.
_IDENTITY: Final[Mapping[str, Any]] = {"run": str, "pid": _Count, "seq": _Count}
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    EventName.INSTALLED: {
        "paths": tuple[str, ...],
        "table": str,
        **dict.fromkeys(("device", "torch", "triton"), str | None),
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
# Absent in logs of earlier builds of warmup 0.1.
_DEFAULTS: Final = {
    "misses": 0,
    "refused": False,
    **dict.fromkeys(("device", "torch", "triton")),
}


# Other programs write {"event": ...} too, so only lines with warmup's event names count.
_JSON_LINE: Final = re.compile(rf'\{{"event": ?"(?:{"|".join(map(re.escape, EventName))})"')


def _event_text(line: str) -> str | None:
    """Return what begins with the JSON of an event in *line*, None where the line has no event."""
    if _JSON_LINE.match(line):
        return line
    _, marker, rest = line.partition(f"{LOG_MARKER} ")
    return rest if marker and rest.startswith("{") else None


def _read_record(text: str) -> dict[str, Any]:
    """Return the event that *text* begins with, empty where it has another schema or is damaged."""
    try:
        record, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    is_event = isinstance(record, dict) and record.get("schema") == EVENT_SCHEMA
    return record if is_event else {}


def _read_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are counted of the event *record*.

    Raises:
        KeyError, ValueError: the event is damaged.
    """
    wanted = {**_IDENTITY, **_FIELDS[record["event"]]}
    record = {**_DEFAULTS, **record}
    return {name: msgspec.convert(record[name], type_) for name, type_ in wanted.items()}


MAX_LINE: Final = 1_000_000


@dataclass
class Run:
    """The events of one installed table in one process, counted over all log files.

    ``choices`` has the compiled choices of each key. ``device``, ``torch`` and ``triton`` are what
    served, None where the log does not say. ``misses`` counts by key and reason, ``uncovered`` by
    site, ``foreign`` the loaded graphs of another table by its digest, and ``outside`` calls that
    no artifact served, by reason. ``uncompiled`` counts frames with torch's reason, ``changed`` the
    changes of frozen weights by frame. ``bypassed`` has the causes why graphs did not ask the
    table, ``is_finished`` says that there is a summary, ``is_mismatched`` that the table is for
    another machine, and nothing of it was applied. ``seen`` has the sequence numbers.
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
    foreign: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)
    bypassed: set[str] = field(default_factory=set)
    uncompiled: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    is_finished: bool = False
    is_mismatched: bool = False
    device: str | None = None
    torch: str | None = None
    triton: str | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether the process was killed before its summary, or still runs; no forked child is."""
        return bool(self.table_digest) and not self.is_finished

    @property
    def is_silent(self) -> bool:
        """Whether there is no decision, not even one of a graph from cache, under a table."""
        is_asked = self.hits or self.misses or self.tuned or selections(self.uncovered)
        return not (is_asked or self.cached_decisions or self.is_mismatched)

    @property
    def label(self) -> str:
        """The name, after the rank if there is one."""
        return f"rank {self.rank} ({self.name})" if self.rank else self.name


class MissDetails(NamedTuple):
    """What a miss event says about the nearest row and the choice that was compiled instead."""

    nearest: str | None
    differs: tuple[str, ...]
    choice: str | None


@dataclass
class Ledger:
    """All runs of some logs. ``first_misses`` has the first miss event of each key and reason.

    ``failed`` counts processes that could not install the table, ``refused`` those among them that
    the table is not for, and ``damaged`` the event lines that cannot be read.
    """

    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    first_misses: dict[tuple[str, str], MissDetails] = field(default_factory=dict)
    contradictions: dict[str, None] = field(default_factory=dict)
    failed: int = 0
    damaged: int = 0
    refused: int = 0
    _failures: set[tuple[str, int]] = field(default_factory=set)

    def read(self, file: BinaryIO, is_cut: Callable[[], bool] = lambda: False) -> None:
        """Count the events in *file*, to its end or until *is_cut*; other lines are skipped.

        Whatever the file holds is counted, skipped or damaged.

        Raises:
            OSError: *file* cannot be read.
        """
        lines = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        while not is_cut() and (line := lines.readline(MAX_LINE)):
            text = _event_text(line)
            if text is None:
                continue
            record = _read_record(text)
            try:
                if record["event"] not in _RETIRED:
                    self.add(record)
            except (KeyError, TypeError, ValueError):
                self.damaged += 1
        lines.detach()

    def add(self, record: Mapping[str, Any]) -> None:
        """Count an event, unless it was counted before from another file.

        Raises:
            KeyError, TypeError, ValueError: the event is damaged, and not counted.
        """
        fields = _read_fields(record)
        if record["event"] == EventName.FAILED:
            self._count_failure(fields)
            return
        run = self._run_of(record, fields)
        if fields["seq"] in run.seen:
            return
        run.seen.add(fields["seq"])
        self._count(run, record, fields)

    def _count_failure(self, fields: Mapping[str, Any]) -> None:
        identity = (fields["run"], fields["pid"])
        if identity not in self._failures:
            self._failures.add(identity)
            self.failed += 1
            self.refused += fields["refused"]

    def _count(self, run: Run, record: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        name = record["event"]
        if name == EventName.INSTALLED:
            run.table_paths, run.table_digest = fields["paths"], fields["table"]
            run.device, run.torch, run.triton = (
                fields[name] for name in ("device", "torch", "triton")
            )
        elif name in (EventName.SUMMARY, EventName.BYPASSED, EventName.MISMATCHED):
            run.is_mismatched |= name == EventName.MISMATCHED
            run.is_finished |= name == EventName.SUMMARY
            run.bypassed |= {fields["cause"]} if name == EventName.BYPASSED else set()
        elif name in (EventName.CACHED, EventName.FOREIGN, EventName.CHANGED):
            _count_graph(run, name, fields)
        elif name == EventName.UNCOVERED:
            run.uncovered[fields["site"]] += 1
        elif name == EventName.UNCOMPILED:
            run.uncompiled["{frame}: {reason}".format_map(fields)] += 1
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
            self._count_miss(run, record, fields)

    def _count_miss(self, run: Run, record: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        miss = (fields["key"], fields["reason"])
        run.misses[miss] += 1
        if miss not in self.first_misses:
            self.first_misses[miss] = _details_of(record)
        _note_choice(run, fields["key"], record.get("choice"))

    def _run_of(self, record: Mapping[str, Any], fields: Mapping[str, Any]) -> Run:
        digest, rank = (msgspec.convert(record.get(name, ""), str) for name in ("digest", "rank"))
        identity = (fields["run"], fields["pid"])
        run = self.runs.get(identity)
        if run is None:
            run = self.runs[identity] = Run("{}/{}".format(*identity))
        run.digest, run.rank = digest or run.digest, rank or run.rank
        return run


def silent_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the silent ones of *runs*; not a parent whose fork, a run of the same id, asked."""
    asked = {run.name.rpartition("/")[0] for run in runs if not run.is_silent}
    return [run for run in runs if run.is_silent and run.name.rpartition("/")[0] not in asked]


def read_logs(logs: Sequence[str | Path]) -> Ledger:
    """Return the runs in *logs*; lines without an event are skipped.

    Raises:
        SettingsError: a log cannot be read, or is neither a regular file nor a pipe of the shell.
    """
    ledger = Ledger()
    for log in logs:
        try:
            with _open(Path(log)) as file:
                ledger.read(file)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            remedy = remedy_for(error, "name the files to audit")
            raise SettingsError(f"the log {log} cannot be read: {reason}", remedy) from error
    return ledger


def _open(path: Path) -> BinaryIO:
    """Open a regular file, or the pipe behind /dev/stdin or the shell's ``<(COMMAND)``.

    Such a pipe has no path of its own, and ends with the command. A FIFO or a device may never end.
    """
    if path.is_fifo() and not Path(os.path.realpath(path)).exists():
        return path.open("rb")
    return open_regular(path)


def _details_of(record: Mapping[str, Any]) -> MissDetails:
    nearest, differs, choice = (record.get(name) for name in MissDetails._fields)
    shared = [
        sys.intern(each)
        for each in (differs if isinstance(differs, list) else ())
        if isinstance(each, str)
    ]
    return MissDetails(
        sys.intern(nearest) if isinstance(nearest, str) else None,
        tuple(shared),
        sys.intern(choice) if isinstance(choice, str) else None,
    )


def _count_graph(run: Run, name: str, fields: Mapping[str, Any]) -> None:
    """Count a graph that was compiled in another process, or whose weights were changed."""
    if name == EventName.CHANGED:
        run.changed[fields["frame"]] += 1
    elif name == EventName.CACHED:
        run.from_cache += 1
        run.cached_decisions += fields["decisions"]
        run.cached_misses += fields["misses"]
    else:
        under = fields["compiled_under"]
        run.foreign[NO_TABLE if under is None else under] += 1


def _note_choice(run: Run, key: str, choice: Any) -> None:
    if isinstance(choice, str):  # strict serving compiles nothing on a miss
        run.choices.setdefault(key, set()).add(sys.intern(choice))
