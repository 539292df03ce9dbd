"""`LayerArtifact`: the artifact of one layer, called with the weights of others.

What makes two layers equal is dynamo's argument, not ours: compiling a layer makes guards about all
that its trace has read, and where they hold for another layer, dynamo itself would run the code of
the first one for it. Added to that is what dynamo takes for granted: no hooks, and weights that are
aligned alike.

The artifact is inductor's own function, without the code that dynamo and AOTAutograd put around it.
What that code would have to do is therefore refused: writing into inputs, outputs that are views of
inputs, random numbers, attributes that the forward sets, gradients, tensor subclasses. Which input
of the function is which tensor is read off a real call, by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from warmup.inductor.layers.form import CallForm, Path, UnshareableLayerError, tensors_of_call
from warmup.inductor.layers.graph_constants import with_constants
from warmup.inductor.layers.opaque_call import SizeOf, TensorLayout, Tensors
from warmup.inductor.layers.packing import Packing
from warmup.inductor.layers.place import LAYER, readable, value_at
from warmup.inductor.layers.reads import ReadObjects, Reads

_ALIGNMENT: Final = 16  # bytes; inductor's kernels may rely on it (torch/_inductor/utils.py)


@dataclass(frozen=True, slots=True)
class LayerArtifact:
    """The artifact of one layer for one bucket; a `LayerCompiler` makes it.

    ``weights`` are expressions of the inputs that are the layer's, by position among all
    ``number_of_inputs``; ``arguments`` are the positions of the inputs that come with the call, and
    ``sizes`` those of the inputs that are the size of a dim of an argument. ``dynamic`` has the
    sizes of the first call, for dims that serve a range. Where weights are frozen, they are no
    inputs, and ``packing`` makes the graph's constants of them.
    """

    form: CallForm
    paths: tuple[Path, ...]
    inputs: tuple[TensorLayout, ...]
    outputs: tuple[TensorLayout, ...]
    weights: Mapping[int, str]
    arguments: tuple[int, ...]
    sizes: Mapping[int, SizeOf]
    dynamic: Mapping[SizeOf, int]
    number_of_inputs: int
    packing: Packing | None
    _graph: Any
    _guards: Any
    _entry: Callable[..., Any]  # its code object owns the guards
    _read: Mapping[str, tuple[TensorLayout, bool]]  # and whether it is aligned
    _reads: Reads

    def difference(self, layer: nn.Module, args: Any, kwargs: Any) -> str | None:
        """Return the guard that fails for *layer* and this call; None where all guards hold."""
        frame = {LAYER: layer, "args": args, "kwargs": kwargs}
        if not self._guards.check(frame):
            parts = self._guards.check_verbose(frame).verbose_code_parts
            text = readable(parts[0]) if parts else "a guard without a name"
            return text if text.startswith("tensor ") else f"{text} does not hold"
        for text, weight in self.weights_of(layer).items():
            # Torch 2.11 skips guards of tensors in a module whose dicts are as they were.
            layout, was_aligned = self._read[text]
            if (other := layout.difference(weight)) is not None:
                return f"{readable(text)} has {other}"
            if is_aligned(weight) != was_aligned:
                return f"{readable(text)} is aligned differently in memory"
        return None

    def weights_of(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """Return the tensors of *layer* that the artifact's code depends on, by their places."""
        return {text: value_at(text, layer, self._entry.__globals__) for text in self._read}

    def add_reads(self, objects: ReadObjects, layer: nn.Module, *, with_globals: bool) -> None:
        """Add to *objects* what the guards read of *layer*, and of globals."""
        names = self._entry.__globals__
        for text, parts in self._reads.of_layer.items():
            objects.add(value_at(text, layer, names), parts, is_global=False)
        if with_globals:
            for text, parts in self._reads.of_globals.items():
                objects.add(value_at(text, layer, names), parts, is_global=True)

    def call_with(self, layer: nn.Module) -> Callable[[Tensors], Tensors]:
        """Return the function of the call's tensors that runs the artifact for *layer*.

        Frozen weights are packed here; the function has their values of now.

        Raises:
            UnshareableLayerError: the layer's weights are packed into other layouts.
        """
        row: list[Any] = [None] * self.number_of_inputs
        weights = self.weights_of(layer)
        for position, text in self.weights.items():
            row[position] = weights[text]
        run, positions = self._graph.current_callable, self.arguments
        if self.packing is not None:
            run = with_constants(self._graph, self.packing.constants(weights))
        sizes = [(position, *size) for position, size in self.sizes.items()]

        def call(inputs: Tensors) -> Tensors:
            own = row.copy()
            for position, tensor in zip(positions, inputs, strict=True):
                own[position] = tensor
            for position, number, dim in sizes:
                own[position] = inputs[number].shape[dim]
            found: Tensors = run(own)
            return found

        return call

    def varied(self, layer: nn.Module, args: Any, kwargs: Any) -> LayerArtifact:
        """Return the artifact with the sizes of its outputs that follow from a dynamic dim.

        These are the sizes that differ for this call, which has other sizes than the first one.

        Raises:
            UnshareableLayerError: a size of an output differs, and is no size of an argument.
        """
        tensors = dict(tensors_of_call(args, kwargs))
        inputs = [tensors[path] for path in self.paths]
        dynamic: dict[tuple[Any, int], SizeOf] = {
            (first, inputs[size.input].shape[size.dim]): size
            for size, first in self.dynamic.items()
        }
        outputs = []
        for layout, tensor in zip(self.outputs, self.call_with(layer)(inputs), strict=True):
            if layout.stride is None:  # known from an earlier proof
                outputs.append(layout)
                continue
            pairs = enumerate(zip(layout.shape, tensor.shape, strict=True))
            changed = {dim: pair for dim, pair in pairs if pair[0] != pair[1]}
            if unknown := [pair for pair in changed.values() if pair not in dynamic]:
                raise UnshareableLayerError(
                    f"returns a dim of {unknown[0][1]} that is no size of an argument"
                )
            symbolic = layout.with_sizes({dim: dynamic[pair] for dim, pair in changed.items()})
            if symbolic is None:
                raise UnshareableLayerError("returns a tensor of dynamic sizes that is not dense")
            outputs.append(symbolic)
        return replace(self, outputs=tuple(outputs))


def is_aligned(tensor: torch.Tensor) -> bool:
    """Return whether *tensor* begins where inductor's kernels may rely on it."""
    return tensor.data_ptr() % _ALIGNMENT == 0
