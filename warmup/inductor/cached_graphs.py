"""`CachedGraphs`: counts of hits and misses that travel with a graph in inductor's cache.

A graph loaded from FxGraphCache skips our hooks, so its cache entry carries the counts of its
compile: every graph compiled under a table is marked, before inductor saves it, with the number of
decisions and of misses. A graph whose mark names another process or another attachment came from
the cache. The table's digest is part of the cache key (options.py), so the counts are about the
same table.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from torch._inductor import compile_fx as compile_fx_module
from torch._inductor.output_code import CompiledFxGraph

from warmup.core.method import Search
from warmup.core.rows import MissReason, Winner
from warmup.inductor.patches import Patches
from warmup.keys.question import Answers, Question
from warmup.keys.registry import kind_of

_GRAPH_MARK: Final = "_warmup_decisions"


class _Count(threading.local):
    """Counts for the graph that this thread is compiling."""

    is_compiling = False
    decisions = 0
    misses = 0

    def clear(self) -> None:
        self.decisions = self.misses = 0


_deferred = threading.local()


@contextlib.contextmanager
def counting_for_graph(graph: Any) -> Iterator[None]:
    """Add this thread's decisions to the mark of *graph* while the context is open.

    For a graph whose kernels were deferred (deferred_kernels.py): it was marked before its kernels
    were compiled, and is saved after them.
    """
    _deferred.graph = graph
    try:
        yield
    finally:
        _deferred.graph = None


class CachedGraphs:
    """Marks compiled graphs with their counts, and reports graphs loaded from a cache."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._owner = uuid.uuid4().hex
        self._count = _Count()
        self._active = True

    def attach(self, patches: Patches) -> None:
        """Mark and report until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(compile_fx_module, "fx_codegen_and_compile", self._wrap_compile)
        patches.wrap(CompiledFxGraph, "post_compile", self._wrap_post_compile)

    def counting_answers(self) -> Answers:
        """Return the answers, wrapped so that every decision is counted for its graph."""
        return _CountingAnswers(self._answers, self._count_decision)

    def _count_decision(self, key: str, *, missed: bool = False) -> None:
        if self._count.is_compiling or kind_of(key).precedes_graphs:
            self._count.decisions += 1
            self._count.misses += missed
        elif mark := getattr(getattr(_deferred, "graph", None), _GRAPH_MARK, None):
            owner, decisions, misses = mark
            setattr(_deferred.graph, _GRAPH_MARK, (owner, decisions + 1, misses + missed))

    def _deactivate(self) -> None:
        self._active = False

    def _wrap_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_and_mark(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(*args, **kwargs)
            count = self._count
            outer, count.is_compiling = count.is_compiling, True
            try:
                graph = original(*args, **kwargs)
                if isinstance(graph, CompiledFxGraph):
                    # The table was closed meanwhile: what was decided since counts as a miss, since
                    # inductor saves the graph under the table's key all the same.
                    lost = not self._active
                    mark = (self._owner, count.decisions + lost, count.misses + lost)
                    setattr(graph, _GRAPH_MARK, mark)
                return graph
            finally:
                count.is_compiling = outer
                count.clear()

        return compile_and_mark

    def _wrap_post_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def post_compile(graph: Any, *args: Any, **kwargs: Any) -> Any:
            owner, decisions, misses = getattr(graph, _GRAPH_MARK, (self._owner, 0, 0))
            if self._active and owner != self._owner:
                self._count.clear()
                self._answers.cached(decisions, misses)
            return original(graph, *args, **kwargs)

        return post_compile


class _CountingAnswers(Answers):
    """Passes every call on to *answers*, and counts the decisions."""

    def __init__(self, answers: Answers, count_decision: Callable[..., None]) -> None:
        self._answers = answers
        self._count_decision = count_decision

    @property
    def tunes(self) -> bool:
        return self._answers.tunes

    @property
    def search(self) -> Search:
        return self._answers.search

    def neighbours(self, key: str) -> Sequence[Winner]:
        return self._answers.neighbours(key)

    def find(self, key: str) -> Winner | MissReason:
        return self._answers.find(key)

    def hit(self, key: str, winner: Winner) -> None:
        self._count_decision(key)
        self._answers.hit(key, winner)

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        self._count_decision(key, missed=True)
        self._answers.miss(key, reason, fallback)

    def measure(self, question: Question) -> Winner | None:
        self._count_decision(question.problem.key)
        return self._answers.measure(question)

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        self._count_decision(key)
        return self._answers.measure_calls(key, library, calls)

    def uncovered(self, site: str) -> None:
        self._answers.uncovered(site)

    def cached(self, decisions: int, misses: int) -> None:
        self._answers.cached(decisions, misses)

    def contradicted(self, option: str, expected: str, found: str) -> None:
        self._answers.contradicted(option, expected, found)

    def overruled(self, option: str, wanted: str, found: str) -> None:
        self._answers.overruled(option, wanted, found)
