"""`listing`: whether this thread only lists the candidates of a graph, to compile them ahead."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Final

from torch._inductor.codecache import PersistentCache
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch.utils._python_dispatch import _disable_current_modes

from warmup.core.events import logger
from warmup.core.text import counted
from warmup.inductor.gemm.choices import is_library
from warmup.inductor.patches import Firewall, Function, Hooks, Patches

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


def wait_for_sent() -> None:
    """Return when the workers have done what was noted before the call, and forget it.

    Where no task ends for 120 s, a warning says so, and nobody waits longer.
    """
    with _under_way_lock:
        sent = set(_under_way)
    left, ended = sent, sent
    while left and ended:
        ended, left = wait(left, timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
    with _under_way_lock:
        _under_way.difference_update(sent)
    if left:
        logger.warning(
            "after %.0f s workers still compile %s: the cost of a call may be too high",
            _WAIT_SECONDS,
            counted(len(left), "kernel"),
        )


# Of the compiled choices, the inputs, the layout and inductor's functions that make the inputs.
ChooseBest = Callable[[list[Any], Any, Any, Any], Any]


class OwnMeasurements(Hooks):
    """Measures selections inside of `chosen_by`, in the thread that opened it, while attached."""

    def __init__(self) -> None:
        self._firewall = Firewall()
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        self._firewall = patches.firewall or self._firewall
        patches.on_restore(self._deactivate)
        patches.hook(AlgorithmSelectorCache, "make_benchmark_fn", self._make_benchmark_fn)
        patches.hook(PersistentCache, "lookup", self._lookup)

    @contextlib.contextmanager
    def chosen_by(self, choose: ChooseBest) -> Iterator[None]:
        """Let *choose* return the choice that inductor selects, while the context is open."""
        self._local.choose, self._local.since = choose, time.monotonic()
        try:
            yield
        finally:
            self._local.choose = None

    @property
    def _choose(self) -> ChooseBest | None:
        return getattr(self._local, "choose", None) if self._active else None

    def _lookup(
        self,
        original: Function,
        cache: Any,
        choices: list[Any],
        op: Any,
        inputs: Any,
        benchmark: Any,
        **kw: Any,
    ) -> Any:
        if self._choose is None:
            return original(cache, choices, op, inputs, benchmark, **kw)
        # Inductor's cache ignores the epilogue; a row depends on it.
        return {} if benchmark is None else benchmark(choices)

    def _make_benchmark_fn(
        self,
        original: Function,
        cls: Any,
        choices: list[Any],
        input_nodes: Any,
        layout: Any,
        input_gen_fns: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        choose = self._choose
        if choose is None:
            return original(cls, choices, input_nodes, layout, input_gen_fns, *args, **kw)

        def measure(ready: list[Any]) -> dict[Any, float]:
            if is_listing():
                default = next(filter(is_library, ready), ready[0])
                return {choice: 0.0 if choice is default else math.inf for choice in ready}
            seconds = time.monotonic() - self._local.since
            logger.debug("%d candidates compiled in %.2f s", len(ready), seconds)
            with _disable_current_modes():  # what records the compile sees no measurement
                best = self._firewall.attempt(
                    "AlgorithmSelectorCache.make_benchmark_fn's function",
                    lambda: choose(ready, input_nodes, layout, input_gen_fns),
                    lambda: next(filter(is_library, ready), ready[0]),
                )
            # Inductor selects the least time; the measured times are in the row's evidence.
            return {choice: 0.0 if choice is best else math.inf for choice in ready}

        return measure
