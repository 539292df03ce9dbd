"""`ProcessWatch`: what an installed table tells people while its process compiles and serves.

`Notices` says on stderr, once in a process for each cause, that a table is of no use. `IdleTimer`
says when no compile has run and no event has come for a while.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from warmup.core.errors import (
    ForeignGraphError,
    MissError,
    MissReason,
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
    differs_of,
    logger,
    print_notice,
)
from warmup.core.text import counted
from warmup.keys.kind import Linear
from warmup.table.schema import OnMiss

IDLE_AFTER_S: Final = 5.0
_SHOWN_KEY: Final = 60
_SHOWN_FRAMES: Final = 3  # the audit lists all


@dataclass
class ProcessWatch:
    """Notices on stderr and a sentence in the log; a sink, and the observer of compiles.

    ``compiles`` counts the compiles so far. ``idle_timer`` is set with the handle that reports.
    """

    notices: Notices
    idle_timer: IdleTimer | None = None
    needs_freezing: Callable[[Sequence[Linear]], None] | None = None
    compiles: int = 0
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _ended_s: float = 0.0
    _since: dict[int, float] = field(default_factory=dict)  # by thread that compiles now
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: Event) -> None:
        """Look at *event*."""
        self.notices(event)
        if self.idle_timer is not None:
            self.idle_timer(event)

    def compile_started(self) -> None:
        """Count a compile."""
        self.compiles = next(self._numbers)  # from any thread
        with self._lock:
            self._since[threading.get_ident()] = time.monotonic()
        if self.idle_timer is not None:
            self.idle_timer.compile_started()

    def compile_ended(self) -> None:
        """Add the time of this compile, and wait for the next one."""
        with self._lock:
            now = time.monotonic()
            self._ended_s += now - self._since.pop(threading.get_ident(), now)
        if self.idle_timer is not None:
            self.idle_timer.compile_ended()

    def compile_seconds(self) -> float:
        """Return the seconds of all compiles, those under way included."""
        with self._lock:
            now = time.monotonic()
            return self._ended_s + sum(now - since for since in self._since.values())

    def unfrozen(self, linears: Callable[[], Sequence[Linear]]) -> None:
        """Report the rows that *linears*, frozen, would have used."""
        if self.needs_freezing is not None:
            self.needs_freezing(linears())

    def left_unfrozen(self) -> None:
        """Give the notice about gradients."""
        self.notices.gradients_on()

    def close(self, *, is_silent: bool, uncompiled: Iterable[str]) -> None:
        """Say what the process compiled if it asked nothing; the log is left alone."""
        if self.idle_timer is not None:
            self.idle_timer.close()
        if is_silent:
            self.notices.unasked(self.compiles, uncompiled)


def is_logged() -> bool:
    """Return whether some handler would write what warmup logs, at least its warnings."""
    if not logger.isEnabledFor(logging.WARNING):
        return False
    current: logging.Logger | None = logger
    while current is not None:
        if any(not isinstance(each, logging.NullHandler) for each in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False


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
_lock = threading.Lock()


class Notices:
    """The notices about one installed table; a sink, for the first miss.

    A notice that the table is bypassed is an event too, also where *is_quiet* keeps it from stderr.
    """

    def __init__(self, table: str, emitter: Emitter, on_miss: OnMiss, *, is_quiet: bool) -> None:
        self._table = table
        self._emitter = emitter
        self._is_strict = on_miss is OnMiss.STRICT
        self._is_quiet = is_quiet
        self._seen: set[NoticeCause] = set()
        if not is_quiet:
            _repeat_fatal_error_at_exit()

    def __call__(self, event: Event) -> None:
        """Print the first miss of the process, of a dynamic dim, and the first changed weight."""
        if event.name is EventName.CHANGED:
            again = "refused (strict)" if self._is_strict else "compiled again with the new values"
            self._print(
                "the weight {weight} was changed after {frame} had frozen it".format_map(
                    event.fields
                )
                + f": the graph is {again}; further changes are only counted",
                NoticeCause.CHANGED,
            )
        if event.name is not EventName.MISSED:
            return
        reason = MissReason(str(event.fields["reason"]))
        is_dynamic = reason is MissReason.DYNAMIC_DIM
        key = str(event.fields["key"]).partition(" a=")[0]  # op, sizes and dtype of a matmul
        shown = key if len(key) <= _SHOWN_KEY else f"{key[:_SHOWN_KEY]}..."
        then = "the compile fails (strict)" if self._is_strict else "inductor's default is compiled"
        text = (
            f"miss: no row of {self._table} answers {shown} ({reason}): {then}; "
            f"{advice_for(reason, differs_of(event))}; further misses are only counted"
        )
        self._print(text, NoticeCause.MISS, *([NoticeCause.DYNAMIC] if is_dynamic else []))

    def late(self, functions: int, *, is_compiling: bool) -> None:
        """Say that *functions* were compiled before the install, or that a compile was going on."""
        before = [f"compiled functions: {functions}"] if functions else []
        before += ["a compile in another thread"] if is_compiling else []
        if before:
            self._bypass(
                NoticeCause.LATE,
                f"{self._table} was installed late, after {' and '.join(before)}; these do not use "
                "it: install before the first call of a compiled model",
            )

    def mismatch(self, refused: str) -> None:
        """Say why nothing of the table is applied in this process."""
        logger.warning("not installed: %s", refused)
        self._print(
            f"nothing of the table is applied, and this process goes on without it: {refused}",
            NoticeCause.MISMATCH,
        )

    def gradients_on(self) -> None:
        """Say that a graph was compiled with gradients although the table is for inference."""
        self._bypass(
            NoticeCause.GRADIENTS,
            f"a graph was compiled with gradients on, so torch froze no weights and asked "
            f"{self._table} nothing about its linears: call the compiled function under "
            "torch.no_grad() or torch.inference_mode(); inside of it that comes too late",
        )

    def unasked(self, compiles: int, uncompiled: Iterable[str]) -> None:
        """Say what was seen of a process that asked nothing, unless the reason was said before."""
        if not self._seen:
            frames = [*uncompiled]
            rest = len(frames) - _SHOWN_FRAMES
            more = [f"and {counted(rest, 'more uncompiled frame')}"] if rest > 0 else []
            said = (*frames[:_SHOWN_FRAMES], *more, what_was_compiled(compiles))
            self._bypass(
                NoticeCause.UNASKED,
                f"{self._table} was not used: process {os.getpid()} looked nothing up; "
                f"{'; '.join(said)}",
            )

    def _bypass(self, cause: NoticeCause, text: str) -> None:
        with _lock:
            is_new = cause not in self._seen
            self._seen.add(cause)
        if is_new:
            self._emitter.emit(EventName.BYPASSED, cause=cause, said=text)
            self._print(text, cause)

    def _print(self, text: str, *causes: NoticeCause) -> None:
        if self._is_quiet:
            return
        with _lock:
            is_new = not _given.issuperset(causes)
            _given.update(causes)
        if is_new:
            print_notice(text)


_FATAL: Final[dict[type[WarmupError], str]] = {
    MissError: "a miss",
    UncoveredError: "an uncovered measurement",
    ForeignGraphError: "a graph of another table",
    WeightChangedError: "a changed weight",
}
_is_repeating = False


def _repeat_fatal_error_at_exit() -> None:
    """Print, as the last line of a process that a refused decision ended, which one that was.

    torch wraps the error, and prints some ninety lines with it.
    """
    global _is_repeating  # noqa: PLW0603  exit handlers belong to the process
    if not _is_repeating:
        _is_repeating = True
        atexit.register(_repeat_fatal_error)


def _repeat_fatal_error() -> None:
    last = getattr(sys, "last_value", None)  # set by Python when it prints an uncaught exception
    own = warmup_error_in(last) if isinstance(last, BaseException) else None
    for kind, what in _FATAL.items():
        if isinstance(own, kind):
            print_notice(f"the program ended at {what}: {own}")


class IdleTimer:
    """Calls *report* when the process is idle: once after each burst of compiles and events.

    A daemon thread waits from the first event of a burst to its report, and keeps no process alive.
    A burst that begins while *is_wanted* is false has none. A forked child reports nothing.
    """

    def __init__(
        self,
        report: Callable[[], None],
        after_s: float = IDLE_AFTER_S,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._report = report
        self._is_wanted = is_wanted
        self._after_s = after_s
        self._changed = threading.Condition()
        self._compiling = 0
        self._deadline = 0.0
        self._is_waiting = self._is_closed = False
        self._owner = os.getpid()

    def __call__(self, event: Event) -> None:
        """Wait anew after *event*; an install alone is nothing to report."""
        if event.name is not EventName.INSTALLED:
            self._disturb(0)

    def compile_started(self) -> None:
        """Wait at least until the compile has ended."""
        self._disturb(1)

    def compile_ended(self) -> None:
        """Wait anew."""
        self._disturb(-1)

    def report_now(self) -> None:
        """Report now what would be reported later; nothing without an event since the last time."""
        if os.getpid() != self._owner:
            return
        with self._changed:
            was_waiting, self._is_waiting = self._is_waiting, False
            self._changed.notify_all()
        if was_waiting:
            self._report()

    def close(self) -> None:
        """End the thread without a report, now and for ever."""
        if os.getpid() != self._owner:
            return
        with self._changed:
            self._is_waiting, self._is_closed = False, True
            self._changed.notify_all()

    def _disturb(self, compiles: int) -> None:
        if os.getpid() != self._owner:  # the thread stayed with the parent, its lock perhaps taken
            return
        with self._changed:
            self._compiling += compiles
            self._deadline = time.monotonic() + self._after_s
            if compiles < 0:
                self._changed.notify_all()  # the thread waits without a deadline during a compile
            if not self._is_waiting and not self._is_closed and self._is_wanted():
                self._is_waiting = True
                threading.Thread(target=self._wait, name="warmup-idle", daemon=True).start()

    def _wait(self) -> None:
        with self._changed:
            while self._is_waiting:
                left = self._deadline - time.monotonic()
                if left <= 0 and not self._compiling:
                    break
                self._changed.wait(None if self._compiling else left)
            else:
                return
            self._is_waiting = False
        self._report()


def what_was_compiled(compiles: int) -> str:
    """Return what is known of a process whose *compiles* asked nothing."""
    if not compiles:
        return (
            "nothing was compiled after the install: call what torch.compile returns after it, and "
            "not what was compiled before"
        )
    return (
        f"{counted(compiles, 'compile')} had no decision for a table: no matmul with several "
        "candidates was in a graph, or gradients were on where weights are frozen"
    )
