"""`Handle`: the table that is installed in this process, until the handle is closed.

`ProcessWatch` says on stderr, once in a process for each cause, that a table is of no use.
`IdleTimer` says when no compile has run and no event has come for a while.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.core.errors import (
    ForeignGraphError,
    MissError,
    MissReason,
    SettingsError,
    UncoveredError,
    WarmupError,
    WeightChangedError,
    advice_for,
    warmup_error_in,
)
from warmup.core.events import (
    Emitter,
    Event,
    EventName,
    JsonLinesSink,
    Sink,
    Tally,
    differs_of,
    in_brackets,
    logger,
    print_notice,
    selections,
)
from warmup.core.text import counted
from warmup.keys.kind import Linear
from warmup.keys.registry import kind_of
from warmup.models.padding import Prepared
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss, Table

if TYPE_CHECKING:
    from warmup.inductor.adapter import Attachment
    from warmup.serving.bundle import UnpackedBundle

IDLE_AFTER_S: Final = 5.0
_SHOWN_KEY: Final = 60
_SHOWN_FRAMES: Final = 3  # the audit lists all
# Counters of a `Report`: those that the summary has the totals of, and those by frame.
_TOTALS: Final = ("hits", "misses", "uncovered", "foreign")
_FRAMES: Final = ("uncompiled", "changed")


@dataclass(frozen=True, slots=True)
class InstallSettings:
    """What is equal in two calls of `install` that are one install. Paths are absolute, or empty.

    A call with a model is never the same install as another: it pads the weights of its model.
    """

    digest: str
    on_miss: str
    uncovered: str
    device: str
    audit_log: str
    bundle: str
    freezes: bool
    pads_model: bool
    is_recording: bool = False

    def difference(self, asked: InstallSettings) -> str:
        """Return the settings in which *asked* differs, as ``name: installed X, asked Y``."""
        theirs = asdict(asked)
        differences = [
            f"{name}: installed {_shown(value)}, asked {_shown(theirs[name])}"
            for name, value in asdict(self).items()
            if value != theirs[name]
        ]
        if self.pads_model and asked.pads_model:
            differences.append("each install would pad a model")
        return "; ".join(differences)


def absolute_path(named: str | os.PathLike[str] | None, variable: str) -> str:
    """Return the path *named*, or else in the environment *variable*, absolute; empty for none."""
    path = named if named is not None else os.environ.get(variable)
    return str(Path(path).absolute()) if path else ""


def emitter_for(digest: str, sinks: list[Sink]) -> Emitter:
    """Return the emitter of a process that serves the table *digest*, or records into it."""
    rank = os.environ.get("RANK")
    ranked = {} if rank is None else {"rank": rank}
    return Emitter(sinks, {"digest": digest[:16], **ranked})


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text[:64] or "none"


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of one installed table so far.

    - ``hits`` and ``misses`` count decisions by key, ``miss_reasons`` the misses by reason,
      ``uncovered`` decisions of no row kind, by site; ``tuned`` counts problems measured while a
      program is recorded.
    - ``from_cache`` counts graphs that inductor loaded from its caches under this table's digest:
      they skip the lookups, so their cache entries carry the counts ``cached_decisions`` and
      ``cached_misses``, decisions without a row.
    - ``foreign`` counts loaded graphs that were compiled under another table, by its digest, or
      ``none`` for no table; refused graphs are among them.
    - ``unused`` are rows that inductor never asked for; rows for weights are no lookups.
    - ``mismatch`` is 1 where nothing of the table is applied, since it is for another machine.
    - ``compiles`` counts graphs that inductor compiled or loaded from its caches,
      ``compile_seconds`` is the time that threads spent on them, all threads together.
    - ``uncompiled`` counts frames that torch.compile left uncompiled, with torch's reason,
      ``changed`` how often weights were changed that a frame had frozen.
    - ``advised`` is what to do about the misses, by reason; ``bundle`` what became of the bundle.
    """

    digest: str
    hits: Mapping[str, int]
    misses: Mapping[str, int]
    miss_reasons: Mapping[str, int]
    uncovered: Mapping[str, int]
    tuned: int
    from_cache: int
    cached_decisions: int
    cached_misses: int
    foreign: Mapping[str, int]
    unused: tuple[str, ...]
    mismatch: int = 0
    compiles: int = 0
    compile_seconds: float = 0.0
    uncompiled: Mapping[str, int] = field(default_factory=dict)
    advised: tuple[str, ...] = ()
    changed: Mapping[str, int] = field(default_factory=dict)
    bundle: str = ""

    @property
    def is_silent(self) -> bool:
        """Whether nothing was looked up, no row kind was lacking, and no cached graph decided."""
        is_asked = self.hits or self.misses or self.tuned or selections(self.uncovered)
        return not (is_asked or self.cached_decisions)

    @property
    def is_clean(self) -> bool:
        """Whether rows answered each decision, there was one, and no graph is another table's."""
        is_missed = self.misses or self.cached_misses or self.foreign
        return not (is_missed or self.uncovered or self.is_silent)

    def __str__(self) -> str:
        lacking = f", {self.cached_misses} without a row" if self.cached_misses else ""
        decisions = counted(self.cached_decisions, "decision")
        parts = [
            counted(sum(self.hits.values()), "hit"),
            f"{counted(sum(self.misses.values()), 'miss')}{in_brackets(self.miss_reasons)}",
            f"{sum(self.uncovered.values())} uncovered{in_brackets(self.uncovered)}",
            f"{counted(self.from_cache, 'graph')} from cache ({decisions}{lacking})",
            f"{counted(len(self.unused), 'row')} unused",
        ]
        if self.foreign:
            foreign = counted(sum(self.foreign.values()), "foreign graph")
            parts.append(f"{foreign}{in_brackets(self.foreign)}")
        if self.uncompiled:
            frames = counted(len(self.uncompiled), "uncompiled frame")
            parts.append(f"{frames} ({'; '.join(self.uncompiled)})")
        if self.changed:
            again = counted(sum(self.changed.values()), "graph")
            parts.append(f"{again} with changed weights ({'; '.join(self.changed)})")
        if self.tuned:
            parts.append(f"{self.tuned} tuned here")
        if self.bundle:
            parts.append(f"bundle {self.bundle}")
        text = f"warmup {self.digest[:12]}: {', '.join(parts)}"
        if self.advised:
            text += f" [{'; '.join(self.advised)}]"
        if self.mismatch:
            text += " [MISMATCH: the table is for another device or runtime, and was not applied]"
        elif self.is_silent and self.foreign:
            text += " [SILENT: nothing was asked; the graphs that were loaded are not this table's]"
        elif self.is_silent:
            text += f" [SILENT: nothing was asked; {_what_was_compiled(self.compiles)}]"
        return text


_installed: list[Handle] = []
install_lock = threading.RLock()  # reentrant: what is imported meanwhile may install as well


def installed() -> Handle | None:
    """Return the handle of the table that is installed in this process; None without a table."""
    return _installed[-1] if _installed else None


def register(handle: Handle) -> None:
    """Make *handle* that of the installed table; `install` calls this under `install_lock`."""
    _installed.append(handle)


@dataclass
class Handle(AbstractContextManager["Handle"]):
    """An installed table. Close it, or use it as a context manager, to restore inductor.

    Installs of the same table with the same settings share a handle, and the last `close` ends it.
    ``prepared`` says which weights of the model were padded, None without a model; ``bundle``
    whether the bundle was unpacked, None without a bundle. ``refused`` is why nothing of the table
    is applied, which is for another device or runtime; None where it is installed.
    """

    table: Table
    digest: str
    _lookup: Lookup
    _tally: Tally
    _attachment: Attachment | None
    settings: InstallSettings
    _watch: ProcessWatch
    prepared: Prepared | None = None
    bundle: UnpackedBundle | None = None
    refused: str | None = None
    _file: JsonLinesSink | None = None
    _installs: int = 1
    _is_closed: bool = field(default=False)
    _owner: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self._watch.idle_timer.report = partial(self._log_counts, "settled: ")
        atexit.register(self._end)

    def report(self) -> Report:
        """Return the counts so far."""
        tally = self._tally
        unasked = self.table.rows.keys() - (tally.hits.keys() | tally.misses.keys())
        return Report(
            digest=self.digest,
            mismatch=int(self.refused is not None),
            **{name: dict(getattr(tally, name)) for name in (*_TOTALS, "miss_reasons", *_FRAMES)},
            tuned=tally.tuned.total(),
            from_cache=tally.cached["graphs"],
            cached_decisions=tally.cached["decisions"],
            cached_misses=tally.cached["misses"],
            compiles=self._watch.compiles,
            advised=tuple(tally.advised),
            compile_seconds=self._watch.compile_seconds(),
            bundle="" if self.bundle is None else self.bundle.outcome,
            unused=tuple(sorted(key for key in unasked if kind_of(key).is_asked)),
        )

    def shared(self, asked: InstallSettings | None = None) -> Handle:
        """Return this handle for one more install, which has to close it as well.

        A SettingsError where the settings *asked* are those of another install.
        """
        if asked is not None:
            if difference := self.settings.difference(asked):
                raise SettingsError(
                    f"a table is installed already ({difference})", "close() its handle first"
                )
            logger.info("the table %s is installed already, with these settings", self.digest[:16])
        self._installs += 1
        return self

    def close(self) -> None:
        """Restore inductor and emit the summary, once each `install` of this handle is closed.

        A compile that another thread has under way goes on without the table, and what it had
        decided is counted. Closing a handle that has ended is fine.
        """
        self._close(1)

    def __exit__(self, *_: object) -> None:
        self.close()

    def settle(self) -> None:
        """Log the counts now instead of some seconds later, if there were events since then."""
        self._watch.idle_timer.report_now()

    def outside(self, reason: str, said: str, calls: int) -> None:
        """Emit that no artifact served a call, the *calls*-th such call; nothing once closed.

        *said* is the text for people, *reason* the name of an `UncompiledReason` in lower case.
        """
        if not self._is_closed:
            self._lookup.emitter.emit(EventName.OUTSIDE, reason=reason, said=said, calls=calls)

    def _end(self) -> None:
        self._close(self._installs)

    def _close(self, installs: int) -> None:
        with install_lock:
            self._installs -= installs
            if self._installs > 0 or self._is_closed:
                return
            self._is_closed = True
            _installed.remove(self)
        if self._attachment is not None:
            self._attachment.detach()
        if os.getpid() == self._owner:  # a forked child has a copy of its parent's counts
            self._summarize()
        self._lookup.close()
        if self._file is not None:
            self._file.close()
        atexit.unregister(self._end)

    def _summarize(self) -> None:
        report = self.report()
        self._watch.close(
            is_silent=report.is_silent and not report.mismatch, uncompiled=report.uncompiled
        )
        self._lookup.emitter.emit(
            EventName.SUMMARY,
            **{name: sum(getattr(report, name).values()) for name in _TOTALS},
            tuned=report.tuned,
            from_cache=report.from_cache,
            cached_decisions=report.cached_decisions,
            cached_misses=report.cached_misses,
            unused=len(report.unused),
            silent=report.is_silent,
            compiled=None if self.bundle is None else len(self.bundle.compiled_besides()),
        )
        self._log_counts()

    def _log_counts(self, when: str = "") -> None:
        report = self.report()
        logger.log(logging.INFO if report.is_clean else logging.WARNING, "%s%s", when, report)


class NoticeCause(StrEnum):
    """Why a table is of no use to a process, or of less use than it could be."""

    LATE = "late"
    GRADIENTS = "gradients"
    UNASKED = "unasked"
    MISS = "miss"
    MISMATCH = "mismatch"
    DYNAMIC = "dynamic"
    CHANGED = "changed"


_given: set[NoticeCause] = set()
_given_lock = threading.Lock()


class ProcessWatch:
    """What an installed table tells people; a sink, and the observer of compiles.

    A notice that the table is bypassed is an event too, also where *is_quiet* keeps it from stderr.
    ``compiles`` counts the compiles so far. ``idle_timer`` gets its report from the handle.
    """

    def __init__(self, table: str, emitter: Emitter, on_miss: OnMiss, *, is_quiet: bool) -> None:
        self.idle_timer = IdleTimer(is_wanted=_is_logged)
        self.needs_freezing: Callable[[Sequence[Linear]], None] | None = None
        self.compiles = 0
        self._table = table
        self._emitter = emitter
        self._is_strict = on_miss is OnMiss.STRICT
        self._is_quiet = is_quiet
        self._seen: set[NoticeCause] = set()
        self._ended_s = 0.0
        self._since: dict[int, float] = {}  # by thread that compiles now
        self._lock = threading.Lock()
        if not is_quiet:
            _repeat_fatal_error_at_exit()

    def __call__(self, event: Event) -> None:
        """Give the notices of a first miss, of a dynamic dim, and of a first changed weight."""
        if event.name is EventName.CHANGED:
            again = "refused (strict)" if self._is_strict else "compiled again with the new values"
            changed = "the weight {weight} was changed after {frame} had frozen it"
            self._print(
                f"{changed.format_map(event.fields)}: the graph is {again}; further changes are "
                "only counted",
                NoticeCause.CHANGED,
            )
        if event.name is EventName.MISSED:
            self._missed(event)
        self.idle_timer(event)

    def compile_started(self) -> None:
        with self._lock:
            self.compiles += 1
            self._since[threading.get_ident()] = time.monotonic()
        self.idle_timer.disturb(1)

    def compile_ended(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._ended_s += now - self._since.pop(threading.get_ident(), now)
        self.idle_timer.disturb(-1)

    def compile_seconds(self) -> float:
        with self._lock:
            now = time.monotonic()
            return self._ended_s + sum(now - since for since in self._since.values())

    def unfrozen(self, linears: Callable[[], Sequence[Linear]]) -> None:
        """Report the rows that *linears*, frozen, would have used."""
        if self.needs_freezing is not None:
            self.needs_freezing(linears())

    def left_unfrozen(self) -> None:
        """Say that a graph was compiled with gradients although the table is for inference."""
        self._bypass(
            NoticeCause.GRADIENTS,
            f"a graph was compiled with gradients on, so torch froze no weights and asked "
            f"{self._table} nothing about its linears: call the compiled function under "
            "torch.no_grad() or torch.inference_mode(); inside of it that comes too late",
        )

    def late(self, functions: int, *, is_compiling: bool) -> None:
        before = [f"compiled functions: {functions}"] if functions else []
        before += ["a compile in another thread"] if is_compiling else []
        if before:
            self._bypass(
                NoticeCause.LATE,
                f"{self._table} was installed late, after {' and '.join(before)}; these do not use "
                "it: install before the first call of a compiled model",
            )

    def mismatch(self, refused: str) -> None:
        logger.warning("not installed: %s", refused)
        self._print(
            f"nothing of the table is applied, and this process goes on without it: {refused}",
            NoticeCause.MISMATCH,
        )

    def close(self, *, is_silent: bool, uncompiled: Iterable[str]) -> None:
        """Say what was seen of a process that asked nothing, unless the reason was said before."""
        self.idle_timer.close()
        if is_silent and not self._seen:
            frames = [*uncompiled]
            rest = len(frames) - _SHOWN_FRAMES
            more = [f"and {counted(rest, 'more uncompiled frame')}"] if rest > 0 else []
            said = (*frames[:_SHOWN_FRAMES], *more, _what_was_compiled(self.compiles))
            self._bypass(
                NoticeCause.UNASKED,
                f"{self._table} was not used: process {os.getpid()} looked nothing up; "
                f"{'; '.join(said)}",
            )

    def _missed(self, event: Event) -> None:
        reason = MissReason(str(event.fields["reason"]))
        is_dynamic = reason is MissReason.DYNAMIC_DIM
        key = str(event.fields["key"]).partition(" a=")[0]  # op, sizes and dtype of a matmul
        shown = key if len(key) <= _SHOWN_KEY else f"{key[:_SHOWN_KEY]}..."
        then = "the compile fails (strict)" if self._is_strict else "inductor's default is compiled"
        self._print(
            f"miss: no row of {self._table} answers {shown} ({reason}): {then}; "
            f"{advice_for(reason, differs_of(event))}; further misses are only counted",
            *(NoticeCause.MISS, *([NoticeCause.DYNAMIC] if is_dynamic else [])),
        )

    def _bypass(self, cause: NoticeCause, text: str) -> None:
        with _given_lock:
            is_new = cause not in self._seen
            self._seen.add(cause)
        if is_new:
            self._emitter.emit(EventName.BYPASSED, cause=cause, said=text)
            self._print(text, cause)

    def _print(self, text: str, *causes: NoticeCause) -> None:
        if self._is_quiet:
            return
        with _given_lock:
            is_new = not _given.issuperset(causes)
            _given.update(causes)
        if is_new:
            print_notice(text)


def _is_logged() -> bool:
    if not logger.isEnabledFor(logging.WARNING):
        return False
    current: logging.Logger | None = logger
    while current is not None:
        if any(not isinstance(each, logging.NullHandler) for each in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False


def _what_was_compiled(compiles: int) -> str:
    if not compiles:
        return (
            "nothing was compiled after the install: call what torch.compile returns after it, and "
            "not what was compiled before"
        )
    return (
        f"{counted(compiles, 'compile')} had no decision for a table: no matmul with several "
        "candidates was in a graph, or gradients were on where weights are frozen"
    )


_FATAL: Final[dict[type[WarmupError], str]] = {
    MissError: "a miss",
    UncoveredError: "an uncovered measurement",
    ForeignGraphError: "a graph of another table",
    WeightChangedError: "a changed weight",
}


@cache
def _repeat_fatal_error_at_exit() -> None:
    """Print the refused decision that ended the process as the last line of its output."""
    # torch wraps the error, and prints some ninety lines with it.
    atexit.register(_repeat_fatal_error)


def _repeat_fatal_error() -> None:
    last = getattr(sys, "last_value", None)  # set by Python when it prints an uncaught exception
    own = warmup_error_in(last) if isinstance(last, BaseException) else None
    for kind, what in _FATAL.items():
        if isinstance(own, kind):
            print_notice(f"the program ended at {what}: {own}")


@dataclass
class IdleTimer:
    """Calls ``report`` when the process is idle: once after each burst of compiles and events.

    A daemon thread waits from the first event of a burst to its report, and keeps no process alive.
    A burst that begins without a ``report``, or while ``is_wanted`` is false, has none. A forked
    child reports nothing.
    """

    report: Callable[[], None] | None = None
    after_s: float = IDLE_AFTER_S
    is_wanted: Callable[[], bool] = lambda: True
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _compiling: int = 0
    _deadline: float = 0.0
    _is_waiting: bool = False
    _is_closed: bool = False
    _owner: int = field(default_factory=os.getpid)

    def __call__(self, event: Event) -> None:
        """Wait anew after *event*; an install alone is nothing to report."""
        if event.name is not EventName.INSTALLED:
            self.disturb(0)

    def report_now(self) -> None:
        """Report now what would be reported later; nothing without an event since the last time."""
        if self._stop_waiting() and self.report is not None:
            self.report()

    def close(self) -> None:
        self._is_closed = True
        self._stop_waiting()

    def _stop_waiting(self) -> bool:
        if os.getpid() != self._owner:
            return False
        with self._changed:
            was_waiting, self._is_waiting = self._is_waiting, False
            self._changed.notify_all()
        return was_waiting

    def disturb(self, compiles: int) -> None:
        """Wait anew, where so many more *compiles* run than before."""
        if os.getpid() != self._owner:  # the thread stayed with the parent, its lock perhaps taken
            return
        with self._changed:
            self._compiling += compiles
            self._deadline = time.monotonic() + self.after_s
            if compiles < 0:
                self._changed.notify_all()  # the thread waits without a deadline during a compile
            is_new = not self._is_waiting and not self._is_closed and self.is_wanted()
            if is_new and self.report is not None:
                self._is_waiting = True
                wait = partial(self._wait, self.report)
                threading.Thread(target=wait, name="warmup-idle", daemon=True).start()

    def _wait(self, report: Callable[[], None]) -> None:
        with self._changed:
            while self._is_waiting:
                left = self._deadline - time.monotonic()
                if left <= 0 and not self._compiling:
                    break
                self._changed.wait(None if self._compiling else left)
            else:
                return
            self._is_waiting = False
        report()
