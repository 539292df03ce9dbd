"""`call_layer`: the op that stands for a repeated layer in the graph around the layers.

The graph around the layers has a node for each call of a layer, ``warmup::layer``, or one for
several calls, ``warmup::layers`` (`joined_calls`). Tracing asks the op for the layouts of its
outputs, running it calls the layer's artifact; both are in the `LayerProgram` that the thread runs
or traces. A number means the same layer in every process, and the node names the layouts of its
outputs, so a graph from inductor's caches is right as well. A CUDA graph records what the artifacts
launch, and its replay does not come here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from warmup.inductor.layers.call_steps import call_steps, run_steps

Tensors = Sequence[torch.Tensor]


class SizeOf(NamedTuple):
    """The size of a dim of an input, where a graph serves a range of sizes."""

    input: int
    dim: int


class TensorLayout(NamedTuple):
    """What a graph may rely on in a tensor: a size is a number, or that of a dim of an input.

    ``stride`` is None where a size is no number: the tensor is dense then, its dims in ``order``.
    """

    shape: tuple[int | SizeOf, ...]
    stride: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    order: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        """Return the layout of *tensor*, whose sizes are plain numbers."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def with_sizes(self, sizes: Mapping[int, SizeOf]) -> TensorLayout | None:
        """Return the layout with these *sizes* by dim; None if the tensor is not dense."""
        if not sizes:
            return self
        assert self.stride is not None
        pairs = sorted(zip(self.stride, self.shape, range(len(self.shape)), strict=True))
        order = tuple(dim for _, _, dim in reversed(pairs))
        if _dense(self.shape, order) != self.stride:
            return None
        shape = tuple(sizes.get(dim, size) for dim, size in enumerate(self.shape))
        return TensorLayout(shape, None, self.dtype, self.device, order)

    def difference(self, tensor: torch.Tensor) -> str | None:
        """Return what a graph for this layout cannot rely on in *tensor*; None for nothing."""
        if (tensor.dtype, tensor.device) != (self.dtype, self.device):
            return f"{tensor.dtype} on {tensor.device}, not {self.dtype} on {self.device}"
        fixed = zip(tensor.shape, self.shape, strict=False)
        is_other = any(actual != size for actual, size in fixed if isinstance(size, int))
        if is_other or tensor.dim() != len(self.shape):
            return f"sizes {tuple(tensor.shape)}, not {self.shape}"
        if self.stride is not None and tuple(tensor.stride()) != self.stride:
            return f"strides {tuple(tensor.stride())}, not {self.stride}"
        return None

    def empty(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return an uninitialized tensor of this layout beside *inputs*."""
        shape = [
            inputs[size.input].shape[size.dim] if isinstance(size, SizeOf) else size
            for size in self.shape
        ]
        stride = _dense(shape, self.order) if self.stride is None else self.stride
        return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device)


def _dense(shape: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Return the strides of a dense tensor, its outermost dim first in *order*."""
    strides: dict[int, Any] = {}
    step: Any = 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides[dim] for dim in range(len(shape)))


class OtherLayoutError(Exception):
    """The graph around the layers calls a layer in another way than it was proved for.

    Argument: what differs.
    """


@dataclass(slots=True)
class LayerProgram:
    """The calls of the layers of one graph, by number: their artifacts, inputs and outputs."""

    calls: list[Callable[[Tensors], Tensors]] = field(default_factory=list)
    inputs: list[tuple[TensorLayout, ...]] = field(default_factory=list)
    outputs: list[tuple[TensorLayout, ...]] = field(default_factory=list)


class _State(threading.local):
    running: LayerProgram | None = None
    tracing: LayerProgram | None = None


_state = _State()


def run_program(
    program: LayerProgram, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Return the result of *compiled*, whose opaque calls are those of *program*."""
    before, _state.running = _state.running, program
    try:
        return compiled(*args, **kwargs)
    finally:
        _state.running = before


@contextlib.contextmanager
def tracing_program(program: LayerProgram) -> Iterator[None]:
    """Let this thread trace graphs with calls of *program* while the context is open."""
    before, _state.tracing = _state.tracing, program
    try:
        yield
    finally:
        _state.tracing = before


def call_layer(inputs: list[torch.Tensor], number: int, outputs: str) -> list[torch.Tensor]:
    """Return the outputs of the call *number* of the program that runs; dynamo can trace it.

    *outputs* names their layouts, so that the key of a cached graph has them.
    """
    found: list[torch.Tensor] = torch.ops.warmup.layer(inputs, number, outputs)
    return found


def name_of(layouts: Sequence[TensorLayout]) -> str:
    """Return a short name that other *layouts* do not have."""
    return hashlib.sha256(repr([tuple(each) for each in layouts]).encode()).hexdigest()[:16]


@functools.cache
def define_op() -> Any:
    """Define the ops, once in a process; the library that defines them."""
    library: Any = torch.library.Library("warmup", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(
        "layer(Tensor[] inputs, int number, str outputs) -> Tensor[]",
        tags=(torch.Tag.needs_exact_strides,),
    )
    library.impl("layer", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("warmup::layer", _trace, lib=library)
    library.define(
        "layers(Tensor[] inputs, str calls) -> Tensor[]", tags=(torch.Tag.needs_exact_strides,)
    )
    library.impl("layers", _run_joined, "CompositeExplicitAutograd")
    torch.library.register_fake("warmup::layers", _trace_joined, lib=library)
    return library


def _run(inputs: list[torch.Tensor], number: int, _outputs: str) -> Tensors:
    program = _state.running
    assert program is not None, "a graph with opaque layers runs by run_program alone"
    return program.calls[number](inputs)


def _trace(inputs: list[torch.Tensor], number: int, _outputs: str) -> list[torch.Tensor]:
    program = _state.tracing
    if program is None:
        raise OtherLayoutError("the graph around the layers was traced again")
    if len(inputs) != len(program.inputs[number]):
        raise OtherLayoutError(
            f"call {number} of a layer has other arguments where the graph is traced"
        )
    for position, (tensor, layout) in enumerate(zip(inputs, program.inputs[number], strict=True)):
        if (difference := layout.difference(tensor)) is not None:
            raise OtherLayoutError(
                f"call {number} of a layer, tensor {position}, where it is traced: {difference}"
            )
    return [layout.empty(inputs) for layout in program.outputs[number]]


def _run_joined(inputs: list[torch.Tensor], calls: str) -> Tensors:
    return run_steps(call_steps(calls), _run, inputs)


def _trace_joined(inputs: list[torch.Tensor], calls: str) -> list[torch.Tensor]:
    return run_steps(call_steps(calls), _trace, inputs)


@contextlib.contextmanager
def seen_as_compiling() -> Iterator[None]:
    """Make `torch.compiler.is_compiling` true in this process while the context is open.

    Models take another path where it is true: transformers makes masks that it leaves out otherwise
    (masking_utils.py), and a run that is to show how layers are called takes the compiled path.
    """
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
