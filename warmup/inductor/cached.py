"""Graphs that come whole from inductor's caches consult nobody, so they carry their decisions.

Each graph compiled while a table is installed is marked with its decisions before inductor saves
it; the mark travels inside the cache entry. A graph that arrives with another process's or another
installation's mark came from the cache. The table's digest is in the cache key (options.py), so it
was compiled for this very table.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any, Final

from torch._inductor import compile_fx as compile_fx_module
from torch._inductor.output_code import CompiledFxGraph

from warmup.inductor.patches import Patches
from warmup.inductor.port import Answers

_MARK: Final = "_warmup_decisions"


class CachedGraphs:
    """Marks compiled graphs with their decisions and reports those that came from a cache."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._owner = uuid.uuid4().hex
        self._count = threading.local()
        self._active = True

    def attach(self, patches: Patches) -> None:
        """Mark and report until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(compile_fx_module, "fx_codegen_and_compile", self._wrap_compile)
        patches.wrap(CompiledFxGraph, "post_compile", self._wrap_post_compile)

    def decided(self) -> None:
        """Count one decision of the graph that this thread is compiling."""
        self._count.value = getattr(self._count, "value", 0) + 1

    def _deactivate(self) -> None:
        self._active = False

    def _wrap_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_and_mark(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(*args, **kwargs)
            outer, self._count.value = getattr(self._count, "value", 0), 0
            try:
                graph = original(*args, **kwargs)
                if isinstance(graph, CompiledFxGraph):
                    setattr(graph, _MARK, (self._owner, self._count.value))
                return graph
            finally:
                self._count.value = outer

        return compile_and_mark

    def _wrap_post_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def post_compile(graph: Any, *args: Any, **kwargs: Any) -> Any:
            owner, decisions = getattr(graph, _MARK, (self._owner, 0))
            if self._active and owner != self._owner:
                self._answers.cached(decisions)
            return original(graph, *args, **kwargs)

        return post_compile
