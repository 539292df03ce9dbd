"""`deferring_kernels`: compiles the next graph while workers still compile kernels of the last.

Inductor submits a graph's kernels to its workers (Triton) or to threads that run the C++ compiler,
and waits for all of them before the next graph is traced (torch/_inductor/async_compile.py, wait).
Here a compile ends without waiting for the kernels and without running the graph:

- In the generated module, a `_DeferredKernel` takes the place of each kernel. The first use of a
  deferred kernel waits for all kernels of its module, so the artifact works in every thread.
- The first call of a graph raises `GraphNotRun` instead of running it; dynamo keeps the artifact.
- The graph's entry in inductor's cache is written after its kernels are compiled, since the entry
  contains the kernels and the counts of decisions about them (cached_graphs.py).
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext, tracing
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CodeCacheFuture, FxGraphCache
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.triton_bundler import TritonBundler

from warmup.inductor.cached_graphs import counting_for_graph
from warmup.inductor.firewall import Firewall
from warmup.inductor.internals import DEFERRED_KERNEL_INTERNALS, check_internals
from warmup.inductor.patches import Patches
from warmup.inductor.versions import check_supported

_deferring = threading.RLock()


class GraphNotRun(BaseException):
    """A graph was compiled but not run.

    A BaseException, so that a model which catches every Exception does not swallow it.
    """


class _DeferredKernel:
    """Takes the place of a kernel that a worker is compiling."""

    def __init__(self, name: str, module: _DeferredModule) -> None:
        self._name, self._module = name, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._module.kernel(self._name)(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._module.kernel(self._name), attribute)


class _DeferredModule:
    """The namespace of a generated module whose kernels are still being compiled."""

    def __init__(
        self,
        owner: DeferredCompile,
        scope: dict[str, Any],
        wait: Callable[[dict[str, Any]], None],
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
        """Return the kernel *name*, after waiting for all kernels of the module."""
        self.finish()
        return self._kernels[name]

    def finish(self) -> None:
        """Wait for the kernels and put them into the namespace.

        Decisions about the kernels are counted for their graph, whichever thread waits first.
        """
        entry = self._owner.entry
        with self._lock, counting_for_graph(None if entry is None else entry.graph):
            if not self.is_whole:
                self._wait(self._kernels)
                self._scope.update(self._kernels)
                self.is_whole = True


@dataclass(slots=True)
class _DeferredCacheEntry:
    """A compiled graph that is written to inductor's cache after its kernels are compiled."""

    graph: Any
    tracing: TracingContext | None
    save: Callable[[Any], None]


@dataclass(slots=True)
class DeferredCompile:
    """What one call compiled, with kernels still compiling; made by `DeferringCompiler.compile`."""

    modules: list[_DeferredModule] = field(default_factory=list)
    entry: _DeferredCacheEntry | None = None

    def finish(self) -> None:
        """Wait for the kernels, and write the graph's entry to inductor's cache.

        Raises:
            Exception: a kernel cannot be compiled.
        """
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
        """Run *call* up to its first run of a compiled graph, and return what it compiled.

        Raises:
            Exception: whatever *call* raises.
        """
        self._current = deferred = DeferredCompile()
        try:
            call()
        except GraphNotRun:
            pass
        finally:
            self._current = None
        return deferred

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.wrap(AsyncCompile, "wait", self._wrap_wait)
        patches.wrap(AsyncCompile, "use_process_pool", self._wrap_use_process_pool)
        patches.wrap(FxGraphCache, "_save_graph", self._wrap_save)
        patches.wrap(CompiledFxGraph, "__call__", self._wrap_call)

    def _compiling(self) -> DeferredCompile | None:
        return self._current if threading.get_ident() == self._thread else None

    def _wrap_wait(self, original: Callable[..., None]) -> Callable[..., None]:
        def wait(compiler: Any, scope: dict[str, Any]) -> None:
            current = self._compiling()
            if current is None:
                original(compiler, scope)
                return
            module = _DeferredModule(current, scope, lambda kernels: original(compiler, kernels))
            current.modules.append(module)

        return wait

    def _wrap_use_process_pool(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def use_process_pool(cls: Any) -> bool:
            # Submit kernels even before the workers are ready: queuing costs this process no time.
            is_ready = original(cls)
            return is_ready or (self._compiling() is not None and cls._ready_future is not None)

        return use_process_pool

    def _wrap_save(self, original: Callable[..., None]) -> Callable[..., None]:
        def save_graph(key: str, graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
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

        return save_graph

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(graph: Any, inputs: Any) -> Any:
            if self._compiling() is not None:
                raise GraphNotRun
            return original(graph, inputs)

        return call


@contextlib.contextmanager
def deferring_kernels() -> Iterator[DeferringCompiler]:
    """Yield a `DeferringCompiler` for this thread.

    Other threads compile and run as usual. A second thread that enters waits for the first.

    Raises:
        UnsupportedTorchError: the installed torch is outside the supported range.
        InductorChangedError: an internal is gone or has another signature.
    """
    check_supported(torch.__version__)
    check_internals(DEFERRED_KERNEL_INTERNALS)
    with _deferring:
        patches, compiler = Patches(Firewall.current()), DeferringCompiler()
        try:
            compiler.attach(patches)
            yield compiler
        finally:
            patches.restore()
