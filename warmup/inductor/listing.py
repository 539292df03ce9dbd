"""`listing`: whether this thread only lists the candidates of a graph, to compile them ahead."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class SentKernels:
    """How many kernels of candidates were sent to the workers."""

    count: int = 0


class _Current(threading.local):
    sent: SentKernels | None = None


_current = _Current()


@contextlib.contextmanager
def listing() -> Iterator[SentKernels]:
    """Let `is_listing` be true in this thread while the context is open; count what is sent."""
    _current.sent = SentKernels()
    try:
        yield _current.sent
    finally:
        _current.sent = None


def is_listing() -> bool:
    """Return whether this thread lowers a graph only to list its candidates."""
    return _current.sent is not None


def count_sent(kernels: int) -> None:
    """Add *kernels* to those that were sent in this thread; nothing outside of `listing`."""
    if _current.sent is not None:
        _current.sent.count += kernels
