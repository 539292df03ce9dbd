"""`Turn`: the right to measure on a device that several processes share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warmup.core.file_lock import locked

_LONGEST_TURN_S: Final = 24 * 3600.0


@dataclass
class Turn:
    """The right to measure, which one thread of one process has at a time; a lock beside *path*.

    The kernel takes it from a process that ends in whatever way.
    """

    path: Path
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _depth: int = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn and hold it; a thread that has it takes it again at once.

        Raises:
            TimeoutError: another process held it for a day.
            OSError: the lock cannot be made.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if not self._depth:
                stack.enter_context(locked(self.path, _LONGEST_TURN_S))
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
