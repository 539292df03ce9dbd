"""Sizes of the nodes of a graph that inductor is lowering; a dynamic one by its hint.

Comparing or converting a symbol would add a guard; reading its hint adds none.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from warmup.core.trial import TensorSpec


def plain(argument: Any) -> Any:
    """Return the hint of a symbol, or of a node that is a size; anything else as it is."""
    if isinstance(argument, Node) and is_size(argument):
        argument = argument.meta["val"]
    is_symbol = isinstance(argument, torch.SymInt) and argument.node.has_hint()
    return int(argument.node.hint) if is_symbol else argument


def is_size(node: Node) -> bool:
    """Whether *node* is a size that was read from a tensor, and no tensor."""
    return isinstance(node.meta.get("val"), int | torch.SymInt)


def sizes_of(node: Node) -> tuple[int, ...] | None:
    """Return the sizes of *node*; None where one has no hint, or it is no tensor."""
    value = node.meta.get("val")
    return _told(value.shape) if isinstance(value, torch.Tensor) else None


def spec_of_node(node: Node) -> TensorSpec | None:
    """Return how *node* is laid out; None where a size has no hint, or it is no strided tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    sizes, strides = _told(value.shape), _told(value.stride())
    if sizes is None or strides is None:
        return None
    return TensorSpec(sizes, strides, 0, str(value.dtype).removeprefix("torch."))


def bytes_of(node: Node) -> float:
    """Return the bytes of *node*, infinitely many where they are not known."""
    sizes = sizes_of(node)
    return math.inf if sizes is None else math.prod(sizes) * node.meta["val"].itemsize


def _told(sizes: Any) -> tuple[int, ...] | None:
    found = tuple(map(plain, sizes))
    return found if all(isinstance(size, int) for size in found) else None
