"""`CachedGraphs`: the mark that says under which table a compiled graph was compiled.

A graph that is loaded from a cache or from a file skips our hooks, so the graph itself carries a
mark, before inductor or an engine saves it: the cache tag of the table, and the number of decisions
and of misses in its compile. A graph with another tag, or none, is foreign: its kernels are not
this table's choices. Inductor's cache keys contain the tag (options.py), but an engine that keeps
compiled graphs under keys of its own, or loads them by path, meets foreign graphs. They are
refused: inductor's cache then reports a miss, and inductor compiles again; a load by path, which
has nothing to fall back to, raises `ForeignGraphError`. The Python source that
``torch.compiler.precompile`` writes (torch 2.15) ends with a comment that has the same mark.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import re
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CodeCacheFuture, FxGraphCache
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.triton_bundler import TritonBundler

from warmup.core.errors import ForeignGraphError
from warmup.core.events import ForeignGraph, GraphLoaded, Hit, HookEvent, Missed, Selected
from warmup.core.rows import Winner
from warmup.inductor.internals import DEFERRED_KERNEL_INTERNALS, check_internals
from warmup.inductor.patches import Firewall, Function, Hooks, Patches
from warmup.inductor.versions import READS_CAPTURE, Version, version_for
from warmup.keys.question import Answers, Question
from warmup.keys.registry import kind_of

_GRAPH_MARK: Final = "_warmup_compiled"


class _Mark(NamedTuple):
    """What a graph carries; stored as a plain tuple, which unpickles without warmup."""

    tag: str | None
    owner: str
    decisions: int
    misses: int


_NO_MARK: Final = _Mark(None, "", 0, 0)
_SOURCE_MARK: Final = re.compile(r"\n# compiled under (\S+): (\d+) decisions, (\d+) misses\n\Z")


def _mark_of(graph: Any) -> _Mark:
    return _Mark(*getattr(graph, _GRAPH_MARK, _NO_MARK))


class _Count(threading.local):
    is_compiling = False
    decisions = 0
    misses = 0
    last = _NO_MARK  # of the graph that was compiled or loaded last

    def clear(self) -> None:
        self.decisions = self.misses = 0


# ``graph``: that to whose mark this thread's decisions are added. Where kernels are deferred, their
# graph was marked before they are compiled, and is saved afterwards.
_deferred = threading.local()


class CachedGraphs(Hooks):
    """Marks compiled graphs with *tag*, and reports graphs that are loaded.

    As answers it passes every call on to *answers*, and counts the decisions for their graph.
    """

    def __init__(self, version: Version, answers: Answers, tag: str) -> None:
        self._version, self._answers, self._tag = version, answers, tag
        self.settings, self.find = answers.settings, answers.find
        self._refused: set[str] = set()
        self._owner = uuid.uuid4().hex
        self._count = _Count()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(compile_fx_module, "fx_codegen_and_compile", self._compile_and_mark)
        patches.hook(FxGraphCache, "cache_hit_post_compile", self._cache_hit_post_compile)
        patches.hook(FxGraphCache, "_lookup_graph", self._lookup_graph)
        patches.hook(CompiledFxGraph, "post_compile", self._post_compile)
        if self._version.has(READS_CAPTURE):
            precompile = importlib.import_module("torch._precompile")
            patches.hook(precompile, "_build_python_source", self._write_source)
            patches.hook(precompile, "_read_artifact", self._read_source)

    def measure(self, question: Question) -> Winner | None:
        if question.makes_row:
            self._count_decision(question.problem.key)
        return self._answers.measure(question)

    def emit(self, event: HookEvent) -> None:
        if isinstance(event, Hit | Missed):
            self._count_decision(event.key, missed=isinstance(event, Missed))
        elif isinstance(event, Selected):
            self._count_decision(event.site)
        self._answers.emit(event)

    def _count_decision(self, key: str, *, missed: bool = False) -> None:
        if self._count.is_compiling or kind_of(key).precedes_graphs:
            self._count.decisions += 1
            self._count.misses += missed
        elif mark := getattr(getattr(_deferred, "graph", None), _GRAPH_MARK, None):
            tag, owner, decisions, misses = mark
            setattr(_deferred.graph, _GRAPH_MARK, (tag, owner, decisions + 1, misses + missed))

    def _compile_and_mark(self, original: Function, *args: Any, **kwargs: Any) -> Any:
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
                count.last = mark
            return graph
        finally:
            count.is_compiling = outer
            count.clear()

    def _cache_hit_post_compile(
        self, original: Function, graph: Any, *args: Any, **kwargs: Any
    ) -> Any:
        tag = _mark_of(graph).tag
        if self._active and self.settings.refuses_foreign and tag != self._tag:
            if graph.cache_key in self._refused:  # AOTAutograd's cache and inductor's both load it
                raise ForeignGraphError(tag, self._tag)
            self._refused.add(graph.cache_key)
            self._count.clear()
            self._answers.emit(ForeignGraph(tag, self._tag))
        return original(graph, *args, **kwargs)

    def _lookup_graph(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except ForeignGraphError:
            return None, {"cache_status_detailed": "guard_miss"}  # inductor compiles anew

    def _post_compile(self, original: Function, graph: Any, *args: Any, **kwargs: Any) -> Any:
        mark = self._count.last = _mark_of(graph)
        if self._active and mark.owner != self._owner:
            self._count.clear()
            if mark.tag == self._tag:
                self._answers.emit(GraphLoaded(mark.decisions, mark.misses))
            else:
                self._answers.emit(ForeignGraph(mark.tag, self._tag))
        return original(graph, *args, **kwargs)

    def _write_source(self, original: Function, *args: Any, **kwargs: Any) -> str:
        source: str = original(*args, **kwargs)
        mark, self._count.last = self._count.last, _NO_MARK
        if not self._active or mark.tag != self._tag:
            return source
        counts = f"{mark.decisions} decisions, {mark.misses} misses"
        return f"{source}\n# compiled under {mark.tag}: {counts}\n"

    def _read_source(self, original: Function, *args: Any, **kwargs: Any) -> tuple[str, bytes]:
        source, cache = original(*args, **kwargs)
        if self._active:
            mark = _SOURCE_MARK.search(source)
            if mark is not None and mark[1] == self._tag:
                self._answers.emit(GraphLoaded(int(mark[2]), int(mark[3])))
            else:
                self._answers.emit(ForeignGraph(mark and mark[1], self._tag))
        return source, cache


_deferring = threading.RLock()


class GraphNotRun(BaseException):
    """Ends a call before the compiled graph runs; a model may catch every Exception."""


class _DeferredKernel:
    def __init__(self, name: str, module: _DeferredModule) -> None:
        self._name, self._module = name, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._module.kernel(self._name)(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._module.kernel(self._name), attribute)


class _DeferredModule:
    """The namespace of a generated module whose kernels are still being compiled."""

    def __init__(
        self, owner: DeferredCompile, scope: dict[str, Any], wait: Callable[[dict[str, Any]], None]
    ) -> None:
        self._owner, self._scope, self._wait = owner, scope, wait
        self._kernels = {
            name: value
            for name, value in scope.items()
            if isinstance(value, (Future, CodeCacheFuture))
        }
        self._lock = threading.Lock()
        self.is_whole = False
        scope.update({name: _DeferredKernel(name, self) for name in self._kernels})

    def kernel(self, name: str) -> Any:
        self.finish()
        return self._kernels[name]

    def finish(self) -> None:
        """Wait for the kernels and put them into the namespace; decisions count for their graph."""
        entry = self._owner.entry
        with self._lock:
            _deferred.graph = None if entry is None else entry.graph
            try:
                if not self.is_whole:
                    self._wait(self._kernels)
                    self._scope.update(self._kernels)
                    self.is_whole = True
            finally:
                _deferred.graph = None


@dataclass(slots=True)
class _DeferredCacheEntry:
    graph: Any
    tracing: TracingContext | None
    save: Callable[[Any], None]


@dataclass(slots=True)
class DeferredCompile:
    """What one call compiled, with kernels still compiling; made by `DeferringCompiler.compile`."""

    modules: list[_DeferredModule] = field(default_factory=list)
    entry: _DeferredCacheEntry | None = None

    def finish(self) -> None:
        """Wait for the kernels, and write the graph's entry to inductor's cache."""
        entry = self.entry
        with compile_lock:  # TritonBundler is shared by all threads
            if entry is None:
                self._wait()
                return
            TritonBundler.begin_compile()
            try:
                self._wait()
                entry.graph.set_triton_bundle(TritonBundler.collect()[0])
            finally:
                TritonBundler.end_compile()
            with tracing(entry.tracing):
                entry.save(entry.graph)

    def _wait(self) -> None:
        for module in self.modules:
            module.finish()


class DeferringCompiler:
    """Compiles in one thread without waiting for kernels; made by `deferring_kernels`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._current: DeferredCompile | None = None

    def compile(self, call: Callable[[], object]) -> DeferredCompile:
        """Run *call* up to its first run of a compiled graph, and return what it compiled."""
        self._current = deferred = DeferredCompile()
        try:
            call()
        except GraphNotRun:
            pass
        finally:
            self._current = None
        return deferred

    def attach(self, patches: Patches) -> None:
        patches.hook(AsyncCompile, "wait", self._wait_hook)
        patches.hook(AsyncCompile, "use_process_pool", self._use_process_pool)
        patches.hook(FxGraphCache, "_save_graph", self._save_graph)
        patches.hook(CompiledFxGraph, "__call__", self._call)

    def _compiling(self) -> DeferredCompile | None:
        return self._current if threading.get_ident() == self._thread else None

    def _wait_hook(self, original: Function, compiler: Any, scope: dict[str, Any]) -> None:
        current = self._compiling()
        if current is None:
            original(compiler, scope)
            return
        module = _DeferredModule(current, scope, lambda kernels: original(compiler, kernels))
        current.modules.append(module)

    def _use_process_pool(self, original: Function, cls: Any) -> bool:
        # Submit kernels even before the workers are ready: queuing costs this process no time.
        is_ready = original(cls)
        return is_ready or (self._compiling() is not None and cls._ready_future is not None)

    def _save_graph(
        self, original: Function, key: str, graph: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        current = self._compiling()
        if current is None or all(module.is_whole for module in current.modules):
            original(key, graph, inputs, *args, **kwargs)
            return
        # AOTAutograd's entry refers to the guards of this entry (codecache.py, _save_graph).
        shape_env: Any = FxGraphCache._get_shape_env()
        sizes = FxGraphCache._filter_backed_symints(inputs)
        guards = shape_env.get_pruned_guards(sizes)
        graph.guards_expr = shape_env.produce_guards_expression(sizes, guards=guards)
        saved = copy.copy(graph)
        saved.prepare_for_serialization()
        current.entry = _DeferredCacheEntry(
            saved,
            TracingContext.try_get(),
            lambda whole: original(key, whole, sizes, *args, **kwargs),
        )

    def _call(self, original: Function, graph: Any, inputs: Any) -> Any:
        if self._compiling() is not None:
            raise GraphNotRun
        return original(graph, inputs)


@contextlib.contextmanager
def deferring_kernels() -> Iterator[DeferringCompiler]:
    """Yield a `DeferringCompiler` for this thread, after checking its internals.

    Other threads compile and run as usual. A second thread that enters waits for the first.
    """
    version_for(torch.__version__)
    check_internals(DEFERRED_KERNEL_INTERNALS)
    with _deferring, Patches(Firewall.current()) as patches:
        compiler = DeferringCompiler()
        compiler.attach(patches)
        yield compiler


# `VariantGraphs`: several graphs that inductor makes of one trace of a module.


class VariantGraphs:
    """The graphs that inductor makes of *module*, one for each of *names*.

    Dynamo and AOTAutograd trace the module once. Each graph is compiled within *compiling* of its
    name; what fails in there is the `error` of the graph, which cannot be called then.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        names: Iterable[Hashable],
        compiling: Callable[[Any], AbstractContextManager[None]],
    ) -> None:
        self._names, self._compiling = tuple(names), compiling
        self._graphs: dict[Hashable, Callable[[list[Any]], Any]] = {}
        self._errors: dict[Hashable, Exception] = {}
        self._chosen: Hashable = None
        self._call = torch.compile(module, dynamic=False, backend=self._compile)

    def compile(self, inputs: Sequence[Any]) -> None:
        """Compile every graph for *inputs*, and run none."""
        with contextlib.suppress(GraphNotRun):
            self._call(*inputs)

    def error(self, name: Hashable) -> Exception | None:
        return self._errors.get(name)

    def call(self, name: Hashable, inputs: Sequence[Any]) -> Any:
        self._chosen = name
        return self._call(*inputs)

    def compile_each(self, compile_one: Callable[[], Any]) -> None:
        for name in self._names:
            try:
                with self._compiling(name):
                    self._graphs[name] = compile_one()
            except Exception as error:  # noqa: BLE001  raised where the graph is called
                self._errors[name] = error.with_traceback(None)

    def _compile(self, graph: Any, inputs: Any) -> Any:
        return compile_fx_module.compile_fx(graph, inputs, inner_compile=self._compile_inner)

    def _compile_inner(self, graph: Any, inputs: Any, **options: Any) -> Any:
        def compile_one() -> Any:
            with TracingContext.report_output_strides():
                return compile_fx_module.compile_fx_inner(copy.deepcopy(graph), inputs, **options)

        def run(inputs: list[Any]) -> Any:
            if self._chosen is None:
                raise GraphNotRun
            return self._graphs[self._chosen](inputs)

        self.compile_each(compile_one)
        run._boxed_call = True  # type: ignore[attr-defined]  # it may clear the list of its inputs
        return run
