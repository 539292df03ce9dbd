"""`Settling`: calls a function once no compile has run and no event has come for a while."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from warmup.core.events import Event, EventName

SETTLED_AFTER_S: Final = 5.0


class Settling:
    """Calls *report* when the process has settled: once after each burst of compiles and events.

    A daemon thread waits from the first event of a burst to its report, and keeps no process alive.
    A burst that begins while *is_wanted* is false has none. A forked child reports nothing.
    """

    def __init__(
        self,
        report: Callable[[], None],
        after_s: float = SETTLED_AFTER_S,
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

    def settle(self) -> None:
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
                threading.Thread(target=self._wait, name="warmup-settling", daemon=True).start()

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
