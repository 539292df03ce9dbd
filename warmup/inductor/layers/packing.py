"""`Packing`: the constants of a frozen graph as functions of its layer's weights.

Freezing makes constants of weights, and of what is computed from weights alone: a transposed
weight, a weight in the blocks of a C++ template. The operations that lead from the weights of the
compiled layer to its constants (`warmup.inductor.layers.weight_tape`) make those of another layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from warmup.inductor.layers.form import UnshareableLayerError


@dataclass(frozen=True, slots=True)
class WeightAt:
    """The weight at *place*, dynamo's expression."""

    place: str


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of *function*, or its item *index*; arguments are a tree with origins in it."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: Any
    index: int


ConstantOrigin = WeightAt | Computed


@dataclass(frozen=True, slots=True)
class Packing:
    """The origin of each constant of a frozen graph, by its name in the generated module.

    ``layouts`` are the constants' sizes, strides and dtypes.
    """

    origins: Mapping[str, ConstantOrigin]
    layouts: Mapping[str, tuple[Any, ...]]

    def places(self) -> tuple[str, ...]:
        """Return the places of all weights that constants are made from."""
        found: dict[str, None] = {}
        pending = [*self.origins.values()]
        while pending:
            origin = pending.pop()
            if isinstance(origin, WeightAt):
                found[origin.place] = None
            else:
                pending += [leaf for leaf in origin.leaves if isinstance(leaf, ConstantOrigin)]
        return tuple(sorted(found))

    def constants(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the constants that follow from *weights*, by place.

        Raises:
            UnshareableLayerError: a constant has another layout than the compiled layer's.
        """
        known: dict[int, Any] = {}  # by id of the origin, which this packing keeps

        def value(origin: Any) -> Any:
            if isinstance(origin, WeightAt):
                return weights[origin.place]
            if not isinstance(origin, Computed):
                return origin
            if id(origin) not in known:
                args, kwargs = pytree.tree_unflatten(map(value, origin.leaves), origin.tree)
                result = origin.function(*args, **kwargs)
                known[id(origin)] = pytree.tree_leaves(result)[origin.index]
            return known[id(origin)]

        with torch.no_grad(), torch._C._DisableAutocast(), _disable_current_modes():
            found: dict[str, torch.Tensor] = {
                name: value(origin) for name, origin in self.origins.items()
            }
        for name, tensor in found.items():
            if layout_of(tensor) != self.layouts[name]:
                raise UnshareableLayerError(f"has other packed weights: {name}")
        return found


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what generated code may rely on in a constant."""
    stride = None if tensor.layout is not torch.strided else tensor.stride()
    return tuple(tensor.shape), stride, tensor.dtype, tensor.device, tensor.layout
