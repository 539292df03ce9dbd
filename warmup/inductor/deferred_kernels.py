"""Graphs that are compiled while the workers still make the kernels of those before.

Inductor hands a graph's kernels to its workers (Triton) or to threads that run the C++ compiler,
and waits for all of them before the next graph is traced (torch/_inductor/async_compile.py, wait).
Here a compile ends without waiting and without running:

- A `_Kernel` stands in the generated module where each kernel will be. Whoever uses one first
  waits for all kernels of its module, so that the artifact is whole for every thread at any time.
- The graph is not run when it is first called: the call is left by `NotRun`, and the artifact
  stays with dynamo.
- The graph's entry in inductor's cache is written once its kernels are there, since it carries
  them, and what was decided about them (cached.py).
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

from warmup.inductor.cached_graphs import deciding_for
from warmup.inductor.internals import HANDOVER_INTERNALS, check_internals
from warmup.inductor.patches import Patches
from warmup.inductor.versions import check_supported

_one_at_a_time = threading.RLock()


class NotRun(BaseException):
    """A graph was compiled, and not run. No error: it passes through a model that catches those."""


class _Kernel:
    """Stands for a kernel that a worker makes."""

    def __init__(self, name: str, module: _Module) -> None:
        self._name, self._module = name, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._module.kernel(self._name)(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._module.kernel(self._name), attribute)


class _Module:
    """The namespace of a generated module, whose kernels are with the workers."""

    def __init__(
        self, pending: Pending, scope: dict[str, Any], wait: Callable[[dict[str, Any]], None]
    ) -> None:
        self._pending, self._scope, self._wait = pending, scope, wait
        self._kernels = {
            name: value
            for name, value in scope.items()
            if isinstance(value, (Future, CodeCacheFuture))
        }
        self._lock = threading.Lock()
        self.is_whole = False
        scope.update({name: _Kernel(name, self) for name in self._kernels})

    def kernel(self, name: str) -> Any:
        """Return a kernel, as soon as all of them are made."""
        self.finish()
        return self._kernels[name]

    def finish(self) -> None:
        """Wait for the kernels and put them where they belong.

        What is decided about them is counted for their graph, whichever thread comes first.
        """
        entry = self._pending.entry
        with self._lock, deciding_for(None if entry is None else entry.graph):
            if not self.is_whole:
                self._wait(self._kernels)
                self._scope.update(self._kernels)
                self.is_whole = True


@dataclass(slots=True)
class _Entry:
    """A compiled graph that is to be written to inductor's cache with its kernels."""

    graph: Any
    tracing: TracingContext | None
    save: Callable[[Any], None]


@dataclass(slots=True)
class Pending:
    """What one call compiled, and nobody waited for yet; made by `Handover.compile`."""

    modules: list[_Module] = field(default_factory=list)
    entry: _Entry | None = None

    def finish(self) -> None:
        """Wait for the kernels, and write the entry of the graph that they belong to.

        Raises:
            Exception: a kernel cannot be compiled.
        """
        entry = self.entry
        with compile_lock:  # the bundler is one for all threads, as is that lock
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


class Handover:
    """The compiles of one thread that are not waited for; made by `handing_over_graphs`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._current: Pending | None = None

    def compile(self, call: Callable[[], object]) -> Pending:
        """Return what *call* compiled until it would have run a compiled graph.

        Raises:
            Exception: what the call raises.
        """
        self._current = pending = Pending()
        try:
            call()
        except NotRun:
            pass
        finally:
            self._current = None
        return pending

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.wrap(AsyncCompile, "wait", self._wrap_wait)
        patches.wrap(AsyncCompile, "use_process_pool", self._wrap_use_process_pool)
        patches.wrap(FxGraphCache, "_save_graph", self._wrap_save)
        patches.wrap(CompiledFxGraph, "__call__", self._wrap_call)

    def _compiling(self) -> Pending | None:
        return self._current if threading.get_ident() == self._thread else None

    def _wrap_wait(self, original: Callable[..., None]) -> Callable[..., None]:
        def wait(compiler: Any, scope: dict[str, Any]) -> None:
            current = self._compiling()
            if current is None:
                original(compiler, scope)
                return
            module = _Module(current, scope, lambda kernels: original(compiler, kernels))
            current.modules.append(module)

        return wait

    def _wrap_use_process_pool(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def use_process_pool(cls: Any) -> bool:
            # Not ready yet: a kernel that is queued meanwhile costs this process no time.
            is_ready = original(cls)
            return is_ready or (self._compiling() is not None and cls._ready_future is not None)

        return use_process_pool

    def _wrap_save(self, original: Callable[..., None]) -> Callable[..., None]:
        def save_graph(key: str, graph: Any, inputs: Any, *where: Any, **named: Any) -> None:
            current = self._compiling()
            if current is None or all(module.is_whole for module in current.modules):
                original(key, graph, inputs, *where, **named)
                return
            # AOTAutograd's own entry names the guards of this one (codecache.py, _save_graph).
            shape_env: Any = FxGraphCache._get_shape_env()
            sizes = FxGraphCache._filter_backed_symints(inputs)
            guards = shape_env.get_pruned_guards(sizes)
            graph.guards_expr = shape_env.produce_guards_expression(sizes, guards=guards)
            kept = copy.copy(graph)
            kept.prepare_for_serialization()
            current.entry = _Entry(
                kept,
                TracingContext.try_get(),
                lambda whole: original(key, whole, sizes, *where, **named),
            )

        return save_graph

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(graph: Any, inputs: Any) -> Any:
            if self._compiling() is not None:
                raise NotRun
            return original(graph, inputs)

        return call


@contextlib.contextmanager
def handing_over_graphs() -> Iterator[Handover]:
    """Yield a `Handover` for this thread, whose compiles end without waiting while this is open.

    Other threads compile and run as always. One is open at a time; another thread waits.

    Raises:
        UnsupportedTorchError: this torch is outside the supported range.
        InductorChangedError: an internal is gone or has another signature.
    """
    check_supported(torch.__version__)
    check_internals(HANDOVER_INTERNALS)
    with _one_at_a_time:
        patches, handover = Patches(), Handover()
        try:
            handover.attach(patches)
            yield handover
        finally:
            patches.restore()
