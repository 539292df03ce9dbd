"""`OwnMeasurements`: a selection of inductor's that a hook measures instead of inductor.

- ``AlgorithmSelectorCache.make_benchmark_fn`` makes the function that measures compiled choices.
- ``PersistentCache.lookup`` would answer from an earlier selection, of which a row knows nothing.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch._inductor.codecache import PersistentCache
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch.utils._python_dispatch import _disable_current_modes

from warmup.core.events import logger
from warmup.inductor.firewall import Firewall
from warmup.inductor.gemm.choices import is_library
from warmup.inductor.listing import is_listing
from warmup.inductor.patches import Hooks, Patches

# Of the compiled choices, the inputs, the layout and inductor's functions that make the inputs.
ChooseBest = Callable[[list[Any], Any, Any, Any], Any]


class OwnMeasurements(Hooks):
    """Measures selections inside of `chosen_by`, in the thread that opened it, while attached."""

    def __init__(self) -> None:
        self._firewall = Firewall()
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        self._firewall = patches.firewall or self._firewall
        patches.on_restore(self._deactivate)
        patches.wrap(AlgorithmSelectorCache, "make_benchmark_fn", self._wrap_benchmark)
        patches.wrap(PersistentCache, "lookup", self._wrap_cache_lookup)

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

    def _wrap_cache_lookup(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(
            cache: Any, choices: list[Any], op: Any, inputs: Any, benchmark: Any, **kw: Any
        ) -> Any:
            if self._choose is None:
                return original(cache, choices, op, inputs, benchmark, **kw)
            # Inductor's cache ignores the epilogue; a row depends on it.
            return {} if benchmark is None else benchmark(choices)

        return lookup

    def _wrap_benchmark(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def make_benchmark_fn(
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

        return make_benchmark_fn
