"""Sizes of FX nodes in a graph that inductor is lowering, with dynamic sizes replaced by hints.

Comparing or converting a symbol would add a guard; reading its hint adds none.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from warmup.core.trial import TensorSpec


def hint_or_value(argument: Any) -> Any:
    """Return the hint of a symbol or of a node that is a size; any other argument unchanged."""
    if isinstance(argument, Node) and is_size(argument):
        argument = argument.meta["val"]
    is_symbol = isinstance(argument, torch.SymInt) and argument.node.has_hint()
    return int(argument.node.hint) if is_symbol else argument


def is_size(node: Node) -> bool:
    """Whether *node* is a size read from a tensor, not a tensor."""
    return isinstance(node.meta.get("val"), int | torch.SymInt)


def sizes_of(node: Node) -> tuple[int, ...] | None:
    """Return the sizes of *node*; None if a size has no hint or *node* is no tensor."""
    value = node.meta.get("val")
    return _hints(value.shape) if isinstance(value, torch.Tensor) else None


def spec_of_node(node: Node) -> TensorSpec | None:
    """Return the layout of *node*; None if a size has no hint or *node* is no strided tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    sizes, strides = _hints(value.shape), _hints(value.stride())
    if sizes is None or strides is None:
        return None
    return TensorSpec(sizes, strides, 0, str(value.dtype).removeprefix("torch."))


def bytes_of(node: Node) -> float:
    """Return the bytes of *node*; infinite if they are not known."""
    sizes = sizes_of(node)
    return math.inf if sizes is None else math.prod(sizes) * node.meta["val"].itemsize


def _hints(sizes: Any) -> tuple[int, ...] | None:
    hints = tuple(map(hint_or_value, sizes))
    return hints if all(isinstance(size, int) for size in hints) else None
