"""`LinearModule`: a small model with one group of Linears, to time its padding apart."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx, nn

from warmup.models.loading import DTYPES
from warmup.models.padding.groups import Group

# A single consumer gets its input from a multiplication by this factor: inductor fuses the padding
# into its kernel, as into that of the operation in front of such a Linear in a model.
_INPUT_FACTOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class LinearModule:
    """A module with *group* alone, in eval mode, and the inputs of one call."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    group: Group


def make_linear_module(group: Group, rows: int, device: torch.device) -> LinearModule:
    """Return a module like *group* on *device*, with random weights and inputs of *rows* rows.

    Its group has the same structure, and can be padded like a group of any model. Producers that
    share an activation in the model share it here. The input of a single consumer comes from an
    operation in front, into whose kernel its padding is fused.
    """
    structure = group.structure
    dtype = DTYPES[structure.dtype]
    biases = iter(structure.biases)
    producers = {
        f"producer_{number}": nn.Linear(
            size, structure.features, bias=next(biases), device=device, dtype=dtype
        )
        for number, size in enumerate(structure.inputs)
    }
    consumers = {
        f"consumer_{number}": nn.Linear(
            structure.features, size, bias=next(biases), device=device, dtype=dtype
        )
        for number, size in enumerate(structure.outputs)
    }
    graph = fx.Graph()
    sources = group.sources if producers else (0,)
    activations = [graph.placeholder(f"activation_{i}") for i in range(max(sources) + 1)]
    sizes = dict(zip(sources, structure.inputs or (structure.features,), strict=True))
    outputs = [
        graph.call_module(name, (activations[source],))
        for name, source in zip(producers, sources, strict=False)
    ]
    if consumers:
        values = _consumer_inputs(graph, group, outputs or activations)
        outputs = [
            graph.call_module(name, (value,)) for name, value in zip(consumers, values, strict=True)
        ]
    graph.output(tuple(outputs))
    module = fx.GraphModule({**producers, **consumers}, graph)
    inputs = tuple(
        torch.randn(rows, sizes[number], device=device, dtype=dtype)
        for number in range(len(activations))
    )
    own = replace(group, producers=tuple(producers), consumers=tuple(consumers))
    return LinearModule(module.eval().requires_grad_(requires_grad=False), inputs, own)


def _consumer_inputs(graph: fx.Graph, group: Group, values: list[fx.Node]) -> list[fx.Node]:
    """Add the operations between the Linears of *group* to *graph*, and return their results."""
    if group.between is None:
        return [graph.call_function(operator.mul, (values[0], _INPUT_FACTOR))]
    copies: dict[fx.Node, fx.Node] = dict(
        zip(group.between.find_nodes(op="placeholder"), values, strict=True)
    )
    inputs: Any = graph.graph_copy(group.between, copies)
    return list(inputs)
