"""`Event` and `Emitter`: audit events, the records of what happened while serving.

Renaming an event or a field is a breaking change and bumps `EVENT_SCHEMA`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from warmup.core.errors import MissReason, SettingsError, WarmupWarning, advice
from warmup.core.text import counted, printable, problem_in, remedy_for

EVENT_SCHEMA: Final = 1
LOG_MARKER: Final = "warmup-event"
logger = logging.getLogger("warmup")


class EventName(StrEnum):
    """The names of all events."""

    INSTALLED = "table.installed"
    """`install` has read a table. `paths` are its files, empty for a loaded table."""
    MISMATCHED = "table.mismatch"
    """A table for another device or runtime, or a torch that is not supported: nothing of the table
    is applied in this process. The fields are those of `table.installed`.
    """
    HIT = "lookup.hit"
    """A row answered, and its choice is in the compiled code."""
    MISSED = "lookup.missed"
    """No row answered. `nearest` is the row of the same op with the fewest differing ingredients,
    `choice` what was compiled instead.
    """
    TUNED = "problem.tuned"
    """A problem was measured here, while a program is recorded."""
    CACHED = "graph.cached"
    """A graph that was compiled under this table was loaded from a cache or a file."""
    FOREIGN = "graph.foreign"
    """A graph that was compiled under another table, or under none, was loaded or refused."""
    UNCOVERED = "benchmark.uncovered"
    """No row kind covers a decision: `choice` was compiled, or, without it, a measurement is about
    to run or was refused.
    """
    OUTSIDE = "call.outside"
    """No bucket of a model of `warmup.compile` served a call; at the first, second, fourth, eighth
    and so on.
    """
    CONTRADICTED = "policy.contradicted"
    """A caller's option differs from the policy and is kept, or a kernel is fused unlike its row
    says; once each.
    """
    OVERRULED = "policy.overruled"
    """A switch of the caller was replaced by the table's value; once each."""
    BYPASSED = "graph.bypassed"
    """Compiled graphs did not consult the table; once for each cause."""
    UNCOMPILED = "frame.uncompiled"
    """torch.compile left a Python function, or a part of it, uncompiled: nothing in it asks a
    table. ``reason`` is torch's.
    """
    CHANGED = "weights.changed"
    """A weight was changed after a graph had frozen it: `frame` is compiled again, or refused in
    strict serving. `changed` counts the changed weights, `weight` is the first.
    """
    FAILED = "install.failed"
    """A process of `warmup run`, or of an engine with the plugin, could not install the table."""
    SUMMARY = "run.summary"
    """The handle was closed, or the process exits."""


_WARNING_EVENTS: Final = (
    *(EventName.MISSED, EventName.CONTRADICTED, EventName.FOREIGN, EventName.MISMATCHED),
    EventName.CHANGED,
)
NO_TABLE: Final = "none"  # counts graphs that were compiled without a table
# By event the counter of a `Tally`, or of a run in an audit, and the text that is counted.
COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    EventName.HIT: ("hits", "{key}"),
    EventName.TUNED: ("tuned", "{key}"),
    EventName.FOREIGN: ("foreign", "{compiled_under}"),
    EventName.UNCOVERED: ("uncovered", "{site}"),
    EventName.BYPASSED: ("bypassed", "{cause}"),
    EventName.UNCOMPILED: ("uncompiled", "{frame}: {reason}"),
    EventName.CHANGED: ("changed", "{frame}"),
}

Scalar = str | int | float | bool | None
FieldValue = Scalar | list[str]


@dataclass(frozen=True, slots=True)
class Event:
    """The record of an event; ``time`` is in seconds since the epoch.

    ``(run, pid, seq)`` identifies it in every sink.
    """

    name: EventName
    run: str
    pid: int
    seq: int
    time: float
    fields: Mapping[str, FieldValue]

    def to_json(self) -> str:
        record: dict[str, FieldValue] = {
            "event": self.name.value,
            "schema": EVENT_SCHEMA,
            "run": self.run,
            "pid": self.pid,
            "seq": self.seq,
            "time": round(self.time, 6),
            **self.fields,
        }
        return json.dumps(record, separators=(",", ":"))


Sink = Callable[[Event], None]


# What inductor's hooks emit. `warmup.table.lookup` adds what the table knows, and emits the record.


@dataclass(frozen=True, slots=True)
class Hit:
    """The winner of the row for ``key`` is in the compiled code."""

    key: str
    winner: str


@dataclass(frozen=True, slots=True)
class Missed:
    """``choice`` is compiled for ``key``, since no row applies. Refused in strict serving."""

    key: str
    reason: MissReason
    choice: str


@dataclass(frozen=True, slots=True)
class Selected:
    """No row kind covers a selection at ``site``; ``choice`` is None where inductor measures."""

    site: str
    choice: str | None


@dataclass(frozen=True, slots=True)
class Benchmarked:
    """``site`` of inductor is about to run a benchmark. Refused where benchmarks are forbidden."""

    site: str


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Whether operations were fused into the template of ``key``; its row has ``expected``."""

    key: str
    expected: bool
    found: bool


@dataclass(frozen=True, slots=True)
class FrameSkipped:
    """torch.compile left ``frame`` uncompiled, for torch's ``reason``."""

    frame: str
    reason: str


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """``frame`` is compiled again, since it froze ``weight``, the first of ``changed``.

    Refused in strict serving.
    """

    weight: str
    changed: int
    frame: str


@dataclass(frozen=True, slots=True)
class GraphLoaded:
    """A graph of this table came from a cache; strict serving refuses it with misses."""

    decisions: int
    misses: int


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """A loaded graph has another cache tag than ``installed``; None for no tag. May be refused."""

    compiled_under: str | None
    installed: str


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The value ``found`` of ``option`` is used instead of the table's; ``advice`` may be empty."""

    option: str
    expected: str
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Overruled:
    """The caller's value ``found`` of ``option`` was replaced by the table's, ``wanted``."""

    option: str
    wanted: str
    found: str


_OfDecisions = Hit | Missed | Selected | Benchmarked | Scheduled
_OfGraphs = FrameSkipped | WeightChanged | GraphLoaded | ForeignGraph
HookEvent = _OfDecisions | _OfGraphs | Contradicted | Overruled


@dataclass
class Emitter:
    """Numbers the events of one run and passes each to every sink, from any thread.

    ``common`` fields are added to each event. A sink that raises is detached with a warning; the
    other sinks still get the event.
    """

    sinks: list[Sink]
    common: Mapping[str, FieldValue] = field(default_factory=dict)
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _sequence: itertools.count[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def emit(self, name: EventName, **fields: FieldValue) -> Event:
        with self._lock:
            pid, number, whole = os.getpid(), next(self._sequence), {**self.common, **fields}
            event = Event(name, self.run, pid, number, time.time(), whole)
            for sink in tuple(self.sinks):
                try:
                    sink(event)
                except Exception as error:  # noqa: BLE001  a broken sink must not break serving
                    self.sinks.remove(sink)
                    logger.warning("audit sink %r failed and was detached: %s", sink, error)
        return event


def differs_of(event: Event) -> list[str]:
    """Return in what the nearest row of a miss differs."""
    differs = event.fields.get("differs")
    return differs if isinstance(differs, list) else []


def log_event(event: Event) -> None:
    """Log *event* in a line that starts with `LOG_MARKER`; what people should see as a warning."""
    level = logging.WARNING if event.name in _WARNING_EVENTS else logging.INFO
    logger.log(level, "%s %s", LOG_MARKER, event.to_json())


@dataclass(slots=True)
class JsonLinesSink:
    """Appends each event to a file as a line; several processes may share the file.

    Each line is a single ``write`` to a descriptor opened with O_APPEND, so that lines of different
    processes do not mix. Where the file ends in half a line, as a full disk or a killed process
    leaves it, a newline is written in front. Events after `close` open the file again.
    """

    path: Path
    _descriptor: int = -1
    _is_file: bool = True
    _is_readable: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """Open or create the file for appending; a SettingsError where it cannot be written."""
        # A pipe is not opened for reading too: it would never break, and fill.
        self._is_file = self.path.is_file() or not self.path.exists()
        self._is_readable = self._is_file and not (
            self.path.exists() and not os.access(self.path, os.R_OK)
        )
        flags = os.O_RDWR if self._is_readable else os.O_WRONLY
        flags |= 0 if self._is_file else os.O_NONBLOCK  # a FIFO would wait for a reader
        flags |= os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            self._descriptor = os.open(self.path, flags, 0o644)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"the audit log {self.path} cannot be written: {problem_in(error)}",
                remedy_for(error, "name a writable file in WARMUP_AUDIT_LOG or audit_log"),
            ) from error
        os.set_blocking(self._descriptor, True)
        self.path = self.path.absolute()  # it may be opened again, from another working folder

    def __call__(self, event: Event) -> None:
        with self._lock:  # a closed descriptor's number may belong to another file
            if self._descriptor >= 0:
                self._append(event)
                return
            self.open()
            try:
                self._append(event)
            finally:
                self._close()

    def _append(self, event: Event) -> None:
        line = event.to_json().encode() + b"\n"
        if self._is_file and not self._ends_in_newline():
            line = b"\n" + line
        if os.write(self._descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, "a part of an event could not be written", str(self.path))

    def _ends_in_newline(self) -> bool:
        if not self._is_readable:
            return False
        size = os.fstat(self._descriptor).st_size
        return size == 0 or os.pread(self._descriptor, 1, size - 1) in (b"\n", b"")

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def count_of(name: str, fields: Mapping[str, object]) -> tuple[str, str]:
    """Return the counter of an event *name* of `COUNTERS`, and the text that is counted."""
    counter, text = COUNTERS[name]
    named = {each: NO_TABLE if value is None else value for each, value in fields.items()}
    return counter, text.format_map(named)


@dataclass(slots=True)
class Tally:
    """A sink that counts the events of a run, for `Handle.report` and the exit summary."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    miss_reasons: Counter[str] = field(default_factory=Counter)
    uncovered: Counter[str] = field(default_factory=Counter)
    tuned: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)
    bypassed: Counter[str] = field(default_factory=Counter)
    uncompiled: Counter[str] = field(default_factory=Counter)
    advised: dict[str, None] = field(default_factory=dict)
    changed: Counter[str] = field(default_factory=Counter)

    def __call__(self, event: Event) -> None:
        if event.name in COUNTERS:
            counter, text = count_of(event.name, event.fields)
            getattr(self, counter)[text] += 1
        elif event.name is EventName.MISSED:
            key, reason = str(event.fields["key"]), str(event.fields["reason"])
            self.misses[key] += 1
            self.miss_reasons[reason] += 1
            self.advised |= dict.fromkeys(advice([(reason, differs_of(event))]))
        elif event.name is EventName.CACHED:
            counts = {name: int(str(event.fields[name])) for name in ("decisions", "misses")}
            self.cached.update(graphs=1, **counts)


def selections(uncovered: Iterable[str]) -> list[str]:
    """Return those of the *uncovered* sites that are selections among choices of inductor."""
    return [site for site in uncovered if site.startswith("select:")]


def in_brackets(counts: Mapping[str, int]) -> str:
    """Return *counts* as `` (miss 1, pad 2)``, sorted by name; empty without counts."""
    text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f" ({text})" if text else ""


# Lines on stderr for people, which reach them whatever logging and warnings are set to.

_PACKAGE: Final = f"{Path(__file__).resolve().parents[1]}/"


def print_notice(text: str) -> None:
    """Print *text* as one line on stderr; a process without a usable stderr loses it."""
    if sys.stderr is not None:  # None in a process that was started without one
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            sys.stderr.write(f"warmup: {printable(text)}\n")
            sys.stderr.flush()


def warn(warning: WarmupWarning) -> None:
    """Issue *warning* for the line outside of warmup that led here; raise in no case."""
    frame = sys._getframe()  # noqa: SLF001  `skip_file_prefixes` needs Python 3.12
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"))
    try:
        warnings.warn_explicit(warning, type(warning), *place)
    except WarmupWarning as error:
        print_notice(str(error))


# `Uncompiled`: what of a model runs outside of torch.compile's graphs, where no row can help.


@dataclass(frozen=True, slots=True)
class Uncompiled:
    """The frames that torch.compile left uncompiled, each with torch's reason.

    ``matmuls`` counts the products and convolutions of a call outside of any graph, where there are
    frames.
    """

    frames: tuple[str, ...] = ()
    matmuls: int = 0

    def with_frames(self, frames: Iterable[str]) -> Uncompiled:
        return replace(self, frames=(*self.frames, *frames))

    def lines(self) -> Iterator[str]:
        """Yield a sentence for each frame, and one for the matmuls."""
        for frame in self.frames:
            yield f"uncompiled: {frame}"
        if self.matmuls:
            yield f"matmuls that a call runs outside any graph, so without a row: {self.matmuls}"

    def __str__(self) -> str:
        frames = "; ".join(self.frames)
        more = f"; matmuls outside any graph: {self.matmuls}" if self.matmuls else ""
        return f"{counted(len(self.frames), 'uncompiled frame')}: {frames}{more}"


NONE_UNCOMPILED: Final = Uncompiled()
