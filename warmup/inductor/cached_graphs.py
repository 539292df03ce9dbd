"""`CachedGraphs`: the mark that says under which table a compiled graph was compiled.

A graph that is loaded from a cache or from a file skips our hooks, so the graph itself carries a
mark: the cache tag of the table, and the number of decisions and of misses in its compile. Every
graph compiled under a table is marked before inductor or an engine saves it. At load there are
three cases:

- The mark has this table's tag and names another process or attachment: the graph is cached.
- The mark has another tag, or the graph has no mark: the graph is foreign, and its kernels are not
  this table's choices. Inductor's cache keys contain the tag (options.py), but an engine that
  keeps compiled graphs under keys of its own, or loads them by path, meets foreign graphs.
- Foreign graphs are refused: inductor's cache then reports a miss, and inductor compiles again;
  a load by path, which has nothing to fall back to, raises `ForeignGraphError`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from torch._inductor import compile_fx as compile_fx_module
from torch._inductor.codecache import FxGraphCache
from torch._inductor.output_code import CompiledFxGraph

from warmup.core.errors import ForeignGraphError
from warmup.core.live_search import LiveSearch
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.inductor.patches import Hooks, Patches
from warmup.keys.question import Answers, Question, RegionQuestion
from warmup.keys.registry import kind_of

_GRAPH_MARK: Final = "_warmup_compiled"


class _Mark(NamedTuple):
    """What a graph carries; stored as a plain tuple, which unpickles without warmup."""

    tag: str | None
    owner: str
    decisions: int
    misses: int


_NO_MARK: Final = _Mark(None, "", 0, 0)


def _mark_of(graph: Any) -> _Mark:
    return _Mark(*getattr(graph, _GRAPH_MARK, _NO_MARK))


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


class CachedGraphs(Hooks):
    """Marks compiled graphs with *tag* and their counts, and reports graphs that are loaded."""

    def __init__(self, answers: Answers, tag: str) -> None:
        self._answers = answers
        self._tag = tag
        self._refused: set[str] = set()
        self._owner = uuid.uuid4().hex
        self._count = _Count()

    def attach(self, patches: Patches) -> None:
        """Mark and report until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(compile_fx_module, "fx_codegen_and_compile", self._wrap_compile)
        patches.wrap(FxGraphCache, "cache_hit_post_compile", self._wrap_load)
        patches.wrap(FxGraphCache, "_lookup_graph", self._wrap_lookup)
        patches.wrap(CompiledFxGraph, "post_compile", self._wrap_post_compile)

    def counting_answers(self) -> Answers:
        """Return the answers, wrapped so that every decision is counted for its graph."""
        return cast("Answers", _CountingAnswers(self._answers, self._count_decision))

    def _count_decision(self, key: str, *, missed: bool = False) -> None:
        if self._count.is_compiling or kind_of(key).precedes_graphs:
            self._count.decisions += 1
            self._count.misses += missed
        elif mark := getattr(getattr(_deferred, "graph", None), _GRAPH_MARK, None):
            tag, owner, decisions, misses = mark
            setattr(_deferred.graph, _GRAPH_MARK, (tag, owner, decisions + 1, misses + missed))

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
                    decisions, misses = count.decisions + lost, count.misses + lost
                    mark = _Mark(self._tag, self._owner, decisions, misses)
                    setattr(graph, _GRAPH_MARK, tuple(mark))
                return graph
            finally:
                count.is_compiling = outer
                count.clear()

        return compile_and_mark

    def _wrap_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def cache_hit_post_compile(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if self._active and self._answers.refuses_foreign:
                self._refuse_if_foreign(graph)
            return original(graph, *args, **kwargs)

        return cache_hit_post_compile

    def _refuse_if_foreign(self, graph: Any) -> None:
        tag = _mark_of(graph).tag
        if tag == self._tag:
            return
        if graph.cache_key in self._refused:  # AOTAutograd's cache and inductor's both load it
            raise ForeignGraphError(tag, self._tag)
        self._refused.add(graph.cache_key)
        self._count.clear()
        self._answers.foreign(tag, self._tag)

    def _wrap_lookup(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def lookup_graph(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except ForeignGraphError:
                return None, {"cache_status_detailed": "guard_miss"}  # inductor compiles anew

        return lookup_graph

    def _wrap_post_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def post_compile(graph: Any, *args: Any, **kwargs: Any) -> Any:
            mark = _mark_of(graph)
            if self._active and mark.owner != self._owner:
                self._count.clear()
                if mark.tag == self._tag:
                    self._answers.cached(mark.decisions, mark.misses)
                else:
                    self._answers.foreign(mark.tag, self._tag)
            return original(graph, *args, **kwargs)

        return post_compile


class _CountingAnswers:
    """Passes every call on to *answers*, and counts the decisions."""

    def __init__(self, answers: Answers, count_decision: Callable[..., None]) -> None:
        self._answers = answers
        self._count_decision = count_decision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answers, name)

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

    def measure_search(self, key: str, search: LiveSearch) -> Winner | None:
        self._count_decision(key)
        return self._answers.measure_search(key, search)

    def measure_region(self, question: RegionQuestion) -> Winner | None:
        self._count_decision(question.key)
        return self._answers.measure_region(question)

    def measures(self, site: str, choice: str) -> bool:
        self._count_decision(site)
        return self._answers.measures(site, choice)
