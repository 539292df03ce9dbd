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


class _Listing(threading.local):
    sent: SentKernels | None = None


_listing = _Listing()


@contextlib.contextmanager
def listing() -> Iterator[SentKernels]:
    """Let `is_listing` be true in this thread while the context is open; count what is sent."""
    _listing.sent = SentKernels()
    try:
        yield _listing.sent
    finally:
        _listing.sent = None


def is_listing() -> bool:
    """Return whether this thread lowers a graph only to list its candidates."""
    return _listing.sent is not None


def count_sent(kernels: int) -> None:
    """Add *kernels* to those that were sent in this thread; nothing outside of `listing`."""
    if _listing.sent is not None:
        _listing.sent.count += kernels
