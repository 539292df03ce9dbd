"""Copies of weights and inputs, taken in turn, so that a call finds its own in no cache.

A product's weight is a model's parameter here and its input there, so both have copies, as every
operand has where candidates are measured. What is compiled takes them as arguments, and is compiled
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from warmup.bench.compare.tensors import tensors_in
from warmup.models.loading import Inputs

_MOST: Final = 64
_MAX_COPIES_BYTES: Final = 2**34  # far more than any cache holds


@dataclass(frozen=True, slots=True)
class Copies:
    """``weights`` of a model with ``contents`` for them, and ``inputs`` by bucket.

    Numbers count modulo the copies there are; the first are the model's and the caller's own.
    """

    weights: tuple[torch.Tensor, ...]
    contents: tuple[tuple[torch.Tensor, ...], ...]
    inputs: tuple[tuple[Inputs, ...], ...]

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, bucket: int, number: int) -> Inputs:
        """Let the model have the weights of that number; return the inputs of it."""
        turn = number % len(self)
        for weight, content in zip(self.weights, self.contents[turn], strict=True):
            weight.data = content
        return self.inputs[bucket][turn]


def copy_operands(module: nn.Module, inputs: Sequence[Inputs], room: int) -> Copies:
    """Return *module*'s parameters and buffers and *inputs*, each with up to 63 copies.

    The copies take *room* bytes or 16 GiB at most; all buckets have as many. Tensors of other
    classes than torch's own are not copied.
    """
    every = dict.fromkeys((*module.parameters(), *module.buffers()))
    weights = tuple(one for one in every if type(one.data) is torch.Tensor)
    own = tuple(one.data for one in weights)
    given = tuple(one for made in inputs for one in tensors_in((made.args, made.kwargs)))
    size = sum(one.untyped_storage().nbytes() for one in (*own, *given))
    more = min(_MOST - 1, min(_MAX_COPIES_BYTES, room) // size) if size else 0
    return Copies(
        weights,
        (own, *(tuple(map(_copy, own)) for _ in range(more))),
        tuple((made, *(_copied(made) for _ in range(more))) for made in inputs),
    )


def _copied(made: Inputs) -> Inputs:
    """Return *made* with tensors of its own; one that it has twice stays one."""
    copies: dict[int, torch.Tensor] = {}

    def copied(leaf: object) -> object:
        if type(leaf) is not torch.Tensor:
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = _copy(leaf.detach()).requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    args, kwargs = torch.utils._pytree.tree_map(copied, (made.args, made.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
    return Inputs(args, kwargs)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* in memory of its own, with all of its storage: padding has its strides."""
    storage: Any = tensor.untyped_storage()  # its clone is untyped
    layout = tensor.storage_offset(), tensor.size(), tensor.stride()
    return tensor.new_empty(0).set_(storage.clone(), *layout)
