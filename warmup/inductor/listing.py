"""What is compiled ahead: `listing` of a graph's candidates, and the `Backlog` of searches."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import Any, Final

from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import PersistentCache
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch.utils._python_dispatch import _disable_current_modes

from warmup.core.events import logger
from warmup.core.text import counted
from warmup.inductor.gemm.choices import is_library
from warmup.inductor.patches import Firewall, Function, Hooks, Patches

_WAIT_SECONDS: Final = 120.0
_KERNELS_AHEAD: Final = 3  # the one that is searched, and the next two
_LEFT_FREE: Final = 4  # one worker in four is for what a search asks for at once
_LIKELY: Final = ""  # in place of a file


class _Listing(threading.local):
    is_open, count = False, 0  # of what was sent since it was opened


_listing = _Listing()
_under_way: set[Future[Any]] = set()  # of all threads
sending: Final = threading.RLock()  # held to send, and to read or change what is or will be sent


@contextlib.contextmanager
def listing() -> Iterator[_Listing]:
    """Let `is_listing` be true in this thread while the context is open; count what is sent."""
    _listing.is_open, _listing.count = True, 0
    try:
        yield _listing
    finally:
        _listing.is_open = False


def is_listing() -> bool:
    """Return whether this thread lowers a graph only to list its candidates."""
    return _listing.is_open


class Backlog:
    """Functions that send tasks for which nobody waits yet, called when workers would be idle.

    First come those that the running search may ask for next, then those of kernels in the order of
    their searches; of few, since what is compiled for a search that ends early is in vain.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[], object]]] = {_LIKELY: []}
        self._workers = 0  # as whoever puts tasks says: inductor's options are per thread

    def put(self, tasks: Iterable[Callable[[], object]], file: str = _LIKELY) -> None:
        """Keep *tasks* of the kernel in *file*, or those that are likely, and no longer others."""
        with sending:
            self._waiting[file], self._workers = [*tasks], get_compile_threads()
        self.send_more()

    def drop(self, until: str | None = None) -> None:
        """Drop what is likely, and the kernels up to that in the file *until*, by default all."""
        with sending:
            files = [*self._waiting] if until else [_LIKELY]
            left = files[files.index(until) + 1 if until in files else 1 :]
            self._waiting = {_LIKELY: [], **{file: self._waiting[file] for file in left}}
        self.send_more()

    def send_more(self, _done: object = None) -> None:
        """Let a thread of inductor's send: the pool calls this under a lock that sending takes."""
        if len(self._waiting) > 1 or self._waiting[_LIKELY]:
            with contextlib.suppress(RuntimeError):  # the process ends
                AsyncCompile.pool().submit(self._send)

    def _send(self) -> None:
        with sending:
            while (task := self._next()) is not None:
                task()

    def _next(self) -> Callable[[], object] | None:
        _under_way.difference_update([task for task in _under_way if task.done()])
        room = self._workers - len(_under_way)
        for file, tasks in islice(self._waiting.items(), 1 + _KERNELS_AHEAD):
            if tasks and room > (0 if file == _LIKELY else self._workers // _LEFT_FREE):
                return tasks.pop(0)
        return None


backlog: Final = Backlog()


def note_sent(task: Future[Any]) -> None:
    """Count *task*, which a worker has, in `listing`; `wait_for_sent` waits for it."""
    with sending:
        _under_way.add(task)
    _listing.count += 1
    task.add_done_callback(backlog.send_more)


def wait_for_sent() -> None:
    """Drop the backlog, and return when the workers have done the tasks noted before the call.

    Where no task ends for 120 s, a warning says so, and nobody waits longer.
    """
    backlog.drop()
    with sending:
        left = ended = set(_under_way)
        _under_way.clear()
    while left and ended:
        ended, left = wait(left, timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
    if left:
        said = "after %.0f s workers still compile %s: the cost of a call may be too high"
        logger.warning(said, _WAIT_SECONDS, counted(len(left), "kernel"))


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
