"""`listing`: whether this thread only lists the candidates of a graph, to compile them ahead."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Final

from warmup.core.counted import counted
from warmup.core.events import logger

_WAIT_SECONDS: Final = 120.0


@dataclass(slots=True)
class SentKernels:
    """How many kernels of candidates were sent to the workers."""

    count: int = 0


class _Listing(threading.local):
    sent: SentKernels | None = None


_listing = _Listing()
_under_way: set[Future[Any]] = set()  # of all threads
_under_way_lock: Final = threading.Lock()  # held to read or change the set


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


def note_sent(task: Future[Any]) -> None:
    """Count *task*, which a worker has, in `listing`; `wait_for_sent` waits for it."""
    with _under_way_lock:
        _under_way.add(task)
    if _listing.sent is not None:
        _listing.sent.count += 1


def wait_for_sent(report: Callable[[int, int], None] = lambda _done, _total: None) -> None:
    """Return when the workers have done what was noted before the call.

    *report* gets how many of these tasks are done, and of how many, whenever some end. The tasks
    are forgotten; a task that another thread notes meanwhile is left for the next call.
    Until then they take the host's time, and write to the caches on disk. Where none of them ends
    for 120 s, a warning says how many kernels the workers still compile, and nobody waits longer.
    """
    with _under_way_lock:
        sent = set(_under_way)
    left, ended = sent, sent
    while left and ended:
        ended, left = wait(left, timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        report(len(sent) - len(left), len(sent))
    with _under_way_lock:
        _under_way.difference_update(sent)
    if left:
        logger.warning(
            "after %.0f s workers still compile %s: times of the host may be too long",
            _WAIT_SECONDS,
            counted(len(left), "kernel"),
        )
