"""`ProcessWatch`: what an installed table tells people while its process compiles and serves."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from warmup.core.events import Event, logger
from warmup.keys.question import Linear
from warmup.serving.notices import Notices
from warmup.serving.settling import Settling


@dataclass
class ProcessWatch:
    """Notices on stderr and a sentence in the log; a sink, and the observer of compiles.

    ``compiles`` counts the compiles so far. ``settling`` is set with the handle that reports.
    """

    notices: Notices
    settling: Settling | None = None
    needs_freezing: Callable[[Sequence[Linear]], None] | None = None
    compiles: int = 0
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _ended_s: float = 0.0
    _since: dict[int, float] = field(default_factory=dict)  # by thread that compiles now
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: Event) -> None:
        """Look at *event*."""
        self.notices(event)
        if self.settling is not None:
            self.settling(event)

    def compile_started(self) -> None:
        """Count a compile."""
        self.compiles = next(self._numbers)  # from any thread
        with self._lock:
            self._since[threading.get_ident()] = time.monotonic()
        if self.settling is not None:
            self.settling.compile_started()

    def compile_ended(self) -> None:
        """Add the time of this compile, and wait for the next one."""
        with self._lock:
            now = time.monotonic()
            self._ended_s += now - self._since.pop(threading.get_ident(), now)
        if self.settling is not None:
            self.settling.compile_ended()

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
        if self.settling is not None:
            self.settling.close()
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
