"""A small model with one group in it, so that its padding can be timed apart."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx, nn

from warmup.models.loading import DTYPES
from warmup.models.padding.groups import Group

# What runs before a lone Linear that pads what it takes: any operation that a compiler fuses with
# the padding, as those are that run before such a Linear in a model.
_FRONT_FACTOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Standin:
    """A model that holds nothing but *group*, in eval mode, and inputs for one call of it."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    group: Group


def make_standin(group: Group, rows: int, device: torch.device) -> Standin:
    """Return a stand-in for *group* on *device*, with random weights and *rows* rows of inputs.

    Its group has the same structure, and can be padded as those of any model. Linears that share an
    activation share it here. The features of a lone Linear that takes them come from an operation
    in front, in which padding them costs next to nothing.
    """
    structure = group.structure
    dtype = DTYPES[structure.dtype]
    biases = iter(structure.biases)
    makers = {
        f"maker_{number}": nn.Linear(
            size, structure.features, bias=next(biases), device=device, dtype=dtype
        )
        for number, size in enumerate(structure.inputs)
    }
    takers = {
        f"taker_{number}": nn.Linear(
            structure.features, size, bias=next(biases), device=device, dtype=dtype
        )
        for number, size in enumerate(structure.outputs)
    }
    graph = fx.Graph()
    sources = group.sources if makers else (0,)
    given = [graph.placeholder(f"given_{number}") for number in range(max(sources) + 1)]
    sizes = dict(zip(sources, structure.inputs or (structure.features,), strict=True))
    made = [
        graph.call_module(name, (given[source],))
        for name, source in zip(makers, sources, strict=False)
    ]
    if takers:
        taken = _taken(graph, group, made or given)
        made = [
            graph.call_module(name, (value,)) for name, value in zip(takers, taken, strict=True)
        ]
    graph.output(tuple(made))
    module = fx.GraphModule({**makers, **takers}, graph)
    inputs = tuple(
        torch.randn(rows, sizes[number], device=device, dtype=dtype) for number in range(len(given))
    )
    own = replace(group, makers=tuple(makers), takers=tuple(takers))
    return Standin(module.eval().requires_grad_(requires_grad=False), inputs, own)


def _taken(graph: fx.Graph, group: Group, values: list[fx.Node]) -> list[fx.Node]:
    """Add to *graph* what computes from *values* what each taker of *group* takes."""
    if group.between is None:
        return [graph.call_function(operator.mul, (values[0], _FRONT_FACTOR))]
    copies: dict[fx.Node, fx.Node] = dict(
        zip(group.between.find_nodes(op="placeholder"), values, strict=True)
    )
    taken: Any = graph.graph_copy(group.between, copies)
    return list(taken)
