"""`call_layer`: the op that stands for a repeated layer in the graph around the layers.

The graph around the layers has one node for each call of a layer, ``warmup::layer(inputs, number)``.
Tracing asks the op for the layouts of its outputs, running it calls the layer's artifact; both are
in the `LayerProgram` that the thread runs or traces. A number means the same layer in every
process, so a graph from inductor's caches is right as well. A CUDA graph records what the artifacts
launch, and its replay does not come here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

Tensors = Sequence[torch.Tensor]


class TensorLayout(NamedTuple):
    """What a graph may rely on in a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        """Return the layout of *tensor*, whose sizes are plain numbers."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


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
    traced: list[int] | None = None  # the numbers of the calls that were traced


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


def call_layer(inputs: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    """Return the outputs of the call *number* of the program that runs; dynamo can trace it."""
    found: list[torch.Tensor] = torch.ops.warmup.layer(inputs, number)
    return found


@functools.cache
def define_op() -> torch.library.Library:
    """Define the op, once in a process; the library that defines it."""
    library = torch.library.Library("warmup", "FRAGMENT")
    library.define(
        "layer(Tensor[] inputs, int number) -> Tensor[]", tags=(torch.Tag.needs_exact_strides,)
    )
    library.impl("layer", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("warmup::layer", _trace, lib=library)
    return library


def _run(inputs: list[torch.Tensor], number: int) -> Tensors:
    program = _state.running
    assert program is not None, "a graph with opaque layers runs by run_program alone"
    return program.calls[number](inputs)


def _trace(inputs: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    program = _state.tracing
    if program is None:
        raise OtherLayoutError("the graph around the layers was traced again")
    for position, (tensor, layout) in enumerate(zip(inputs, program.inputs[number], strict=True)):
        if tuple(tensor.shape) != layout.shape or tensor.stride() != layout.stride:
            found = f"sizes {tuple(tensor.shape)}, strides {tuple(tensor.stride())}"
            raise OtherLayoutError(
                f"call {number} of a layer, tensor {position}: {found} where the graph is traced, "
                f"sizes {layout.shape}, strides {layout.stride} where it runs"
            )
        if (tensor.dtype, tensor.device) != (layout.dtype, layout.device):
            raise OtherLayoutError(
                f"call {number} of a layer, tensor {position}: {tensor.dtype} on {tensor.device} "
                f"where the graph is traced, {layout.dtype} on {layout.device} where it runs"
            )
    return [
        torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device=each.device)
        for each in program.outputs[number]
    ]
