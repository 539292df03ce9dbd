"""`Copies`: copies of weights and inputs, used in turn, so that no call finds them in a cache.

An operand of a GEMM may be a parameter or an input of the model, so both are copied, as all
operands are where candidates are measured. The compiled graph takes both as arguments, so it is
compiled once for all copies.
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
_MAX_COPIES_BYTES: Final = 2**34  # far larger than the L2 cache of any device


@dataclass(frozen=True, slots=True)
class Copies:
    """The ``weights`` of a model, the ``contents`` of each copy, and the ``inputs`` by bucket.

    The number of a copy is taken modulo the count of copies; copy 0 is the original.
    """

    weights: tuple[torch.Tensor, ...]
    contents: tuple[tuple[torch.Tensor, ...], ...]
    inputs: tuple[tuple[Inputs, ...], ...]

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, bucket: int, number: int) -> Inputs:
        """Give the model the weights of copy *number*; return the inputs of that copy."""
        turn = number % len(self)
        for weight, content in zip(self.weights, self.contents[turn], strict=True):
            weight.data = content
        return self.inputs[bucket][turn]


def copy_operands(module: nn.Module, inputs: Sequence[Inputs], room: int) -> Copies:
    """Return *module*'s parameters and buffers and *inputs*, each with up to 63 copies.

    The copies take at most *room* bytes and at most 16 GiB; all buckets have equally many.
    Weights and inputs of tensor subclasses are not copied.
    """
    unique = dict.fromkeys((*module.parameters(), *module.buffers()))
    weights = tuple(weight for weight in unique if type(weight.data) is torch.Tensor)
    contents = tuple(weight.data for weight in weights)
    arguments = tensors_in([(given.args, given.kwargs) for given in inputs])
    size = sum(tensor.untyped_storage().nbytes() for tensor in (*contents, *arguments))
    count = min(_MOST - 1, min(_MAX_COPIES_BYTES, room) // size) if size else 0
    return Copies(
        weights,
        (contents, *(tuple(map(_copy, contents)) for _ in range(count))),
        tuple((given, *(_copied(given) for _ in range(count))) for given in inputs),
    )


def _copied(inputs: Inputs) -> Inputs:
    """Return *inputs* with copies of its tensors; a tensor that occurs twice is copied once."""
    copies: dict[int, torch.Tensor] = {}

    def copied(leaf: object) -> object:
        if type(leaf) is not torch.Tensor:
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = _copy(leaf.detach()).requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    args, kwargs = torch.utils._pytree.tree_map(copied, (inputs.args, inputs.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
    return Inputs(args, kwargs)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* with a copy of its whole storage, which keeps the strides of padding."""
    storage: Any = tensor.untyped_storage()  # its clone is untyped
    layout = tensor.storage_offset(), tensor.size(), tensor.stride()
    return tensor.new_empty(0).set_(storage.clone(), *layout)
