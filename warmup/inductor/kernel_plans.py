"""`PlanWatch`: what each compiled graph launches, and the decision behind each launch.

Read while inductor generates code: the order of the scheduler's nodes is the order of the launches,
``define_kernel`` names the kernel of fused nodes, and a GEMM's key is described at its selection.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch._inductor.dependencies import MemoryDep
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.scheduler import BaseSchedulerNode, Scheduler
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V

from warmup.core.errors import ProblemError
from warmup.core.roofline import GraphPlan, PlannedBy, PlannedKernel, dtype_name
from warmup.inductor.caches import own_cache_entries
from warmup.inductor.gemm.choices import post_op_of
from warmup.inductor.gemm.key import describe
from warmup.inductor.launch.kernels import problem_of
from warmup.inductor.patches import Firewall, Function, Patches
from warmup.inductor.selections import Convolutions, GroupedProducts
from warmup.keys.gemm import COVERED, CPU_LINEAR
from warmup.keys.registry import work_of

_LISTED_ALONE: Final = {one.name: one for one in (Convolutions, GroupedProducts)}


def _key_of(name: str, choices: list[Any], inputs: Any, layout: Any) -> str | None:
    try:
        if (selection := _LISTED_ALONE.get(name)) is not None:
            return selection.describe(choices, inputs, layout).key
        if name not in COVERED:
            return None
        post_op = post_op_of(choices) if name in CPU_LINEAR else None
        return describe(name, list(inputs), layout, post_op).key
    except ProblemError:  # a key cannot describe it
        return None


@dataclass(slots=True)
class _Lowered:
    keys: dict[str, str] = field(default_factory=dict)  # of GEMMs, by buffer
    kernels: dict[str, tuple[str, PlannedBy]] = field(default_factory=dict)  # by buffer
    planned: list[PlannedKernel] = field(default_factory=list)


class PlanWatch:
    """The plans of graphs that were compiled while this was attached, oldest first."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakKeyDictionary[Any, _Lowered] = weakref.WeakKeyDictionary()
        self._compiled: list[tuple[Any, _Lowered]] = []
        self._lock = threading.Lock()

    def plans(self) -> tuple[GraphPlan, ...]:
        with self._lock:
            return tuple(
                GraphPlan(str(compiled._fx_graph_cache_key), tuple(lowered.planned))
                for compiled, lowered in self._compiled
            )

    def attach(self, patches: Patches) -> None:
        from torch._inductor.codegen.cpp import CppScheduling
        from torch._inductor.codegen.triton import TritonScheduling

        def after(owner: Any, name: str, note: Callable[..., None]) -> None:
            """Call *note* with what each call of the method returned, and with its arguments."""

            def call(original: Function, *args: Any, **kw: Any) -> Any:
                returned = original(*args, **kw)
                note(returned, *args)
                return returned

            patches.hook(owner, name, call)

        patches.hook(AlgorithmSelectorCache, "__call__", self._select)
        after(TritonScheduling, "define_kernel", partial(self._note_kernel, PlannedBy.TRITON))
        after(CppScheduling, "define_kernel", partial(self._note_kernel, PlannedBy.CPP))
        after(Scheduler, "codegen", self._note_launches)
        after(GraphLowering, "compile_to_module", self._note_module)
        after(CompiledFxGraph, "__init__", self._note_compiled)

    def _of(self, graph: Any) -> _Lowered:
        with self._lock:
            return self._graphs.setdefault(graph, _Lowered())

    def _select(
        self,
        original: Function,
        cache: Any,
        name: str,
        choices: list[Any],
        input_nodes: Any,
        layout: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        key = _key_of(name, choices, input_nodes, layout)
        selected = original(cache, name, choices, input_nodes, layout, *args, **kw)
        node = selected[0] if isinstance(selected, tuple) else selected  # from torch 2.12 on
        if key is not None:
            self._of(V.graph).keys[node.get_name()] = key
        return selected

    def _note_kernel(
        self, by: PlannedBy, name: str, _scheduling: Any, _source: Any, nodes: Any, *_: Any
    ) -> None:
        kernels = self._of(V.graph).kernels
        for node in nodes:  # marks of where reductions begin and end are in it too
            kernels.update(dict.fromkeys(_buffers_of(node), (name, by)))

    def _note_launches(self, _generated: Any, scheduler: Any) -> None:
        lowered = self._of(V.graph)
        lowered.planned = list(_planned_in(scheduler, lowered))

    def _note_module(self, module: Any, graph: Any) -> None:
        lowered = self._of(graph)
        lowered.planned = [_with_launch_key(each, module) for each in lowered.planned]

    def _note_compiled(
        self, _none: None, compiled: Any, _callable: Any, graph: Any, *_: Any
    ) -> None:
        with self._lock:
            lowered = self._graphs.get(graph)
            if lowered is not None:
                self._compiled.append((compiled, lowered))


@contextlib.contextmanager
def watching_plans() -> Iterator[PlanWatch]:
    """Note the graphs that any thread compiles while the context is open, not those from caches."""
    watch = PlanWatch()
    with Patches(Firewall.current()) as patches:
        watch.attach(patches)
        yield watch


def _buffers_of(node: Any) -> list[str]:
    if not isinstance(node, BaseSchedulerNode):
        return []
    return [output.get_name() for output in node.get_outputs()]


def _planned_in(scheduler: Any, lowered: _Lowered) -> Iterator[PlannedKernel]:
    seen = None
    for node in scheduler.nodes:
        buffers = _buffers_of(node)
        names = dict.fromkeys(lowered.kernels[each] for each in buffers if each in lowered.kernels)
        keys = tuple(lowered.keys[each] for each in buffers if each in lowered.keys)
        if names:
            for name, by in names:
                if by is PlannedBy.CPP and name == seen:
                    continue  # one C++ kernel holds several nodes
                seen = name
                yield _planned(name, by, keys, node)
        elif node.is_extern() and (operator := _operator_of(node.node)) is not None:
            seen = None
            yield _planned(operator, PlannedBy.LIBRARY, keys, node)


def _operator_of(extern: Any) -> str | None:
    overload = getattr(extern, "op_overload", None)
    name = getattr(extern, "python_kernel_name", None)
    if overload is None and not name:
        return None
    return str(overload or name)


def _planned(name: str, by: PlannedBy, keys: tuple[str, ...], node: Any) -> PlannedKernel:
    work = work_of(keys[0]) if keys else None
    flops = work.flops if work is not None else node.estimate_flops()
    outputs = [each.node.get_dtype() for each in node.get_outputs() if _has_dtype(each.node)]
    dtype = work.dtype if work is not None else dtype_name(outputs[0]) if outputs else ""
    # Inductor counts at most one element of an operand for each of the result's, which is too few
    # for a matmul; a key does not count what is fused into it.
    moved = max(_moved_by(node), 0 if work is None else work.moved)
    return PlannedKernel(
        name=name,
        by=by,
        keys=keys,
        dtype=dtype,
        flops=None if flops is None else int(flops),
        moved=int(moved) or None,
    )


def _moved_by(node: Any) -> int:
    # Of several fused nodes inductor counts whole buffers. A buffer that is read at computed
    # places, as an embedding's weight is, counts as many elements as the largest node that reads it
    # has: the others are taken to read the same places.
    moved = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    reads = node.read_writes.reads
    gathered = {dep.name for dep in reads if isinstance(dep, MemoryDep) and dep.is_indirect()}
    members = [
        each.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
        for each in node.get_nodes()
        if gathered
    ]
    most = {name: max(member.get(name, 0) for member in members) for name in gathered}
    return int(sum(min(count, most.get(name, count)) for name, count in moved.items()))


def _has_dtype(buffer: Any) -> bool:
    try:
        return isinstance(buffer.get_dtype(), torch.dtype)
    except (AttributeError, NotImplementedError):  # an output without a layout, such as a tuple's
        return False


def _with_launch_key(kernel: PlannedKernel, module: Any) -> PlannedKernel:
    if kernel.by is not PlannedBy.TRITON:
        return kernel
    problem = problem_of(getattr(module, kernel.name, None))
    return kernel if problem is None else replace(kernel, keys=(*kernel.keys, problem.key))


@contextlib.contextmanager
def fresh_graphs() -> Iterator[None]:
    """Compile every graph anew while the context is open, with the names of its C++ kernels."""
    from torch._inductor import config

    named = own_cache_entries(f"recording-{uuid.uuid4().hex}")
    torch.compiler.reset()
    with config.patch({"cpp.enable_kernel_profile": True}), named:
        yield
    torch.compiler.reset()
