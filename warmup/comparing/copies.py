"""Copies of a model's weights, taken in turn, so that a call finds its own in no cache. Floor 2.

In a server the weights of other layers pass through the L2 between two calls of a layer, while its
inputs and its kernels are there again. So weights alone have copies. What is compiled takes them as
arguments, and is compiled once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

_MOST: Final = 64
_MOST_BYTES: Final = 2**31
_SHARE: Final = 8  # of the memory that is free, the part that copies may take


@dataclass(frozen=True, slots=True)
class Copies:
    """``tensors`` of a model, and ``contents`` for them; the first are their own."""

    tensors: tuple[torch.Tensor, ...]
    contents: tuple[tuple[torch.Tensor, ...], ...]

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, number: int) -> None:
        """Let the model have the copy of that number, modulo those there are."""
        found = self.contents[number % len(self.contents)]
        for tensor, content in zip(self.tensors, found, strict=True):
            tensor.data = content


def copy_weights(module: nn.Module, device: torch.device) -> Copies:
    """Return copies of *module*'s parameters and buffers: their own, and up to 63 more on *device*.

    Those take 2 GiB or an eighth of the free memory at most. There are none on a CPU, whose kernels
    may have packed the weights away. Tensors of other classes than torch's own are not copied.
    """
    every = dict.fromkeys((*module.parameters(), *module.buffers()))
    tensors = tuple(one for one in every if type(one.data) is torch.Tensor)
    own = tuple(one.data for one in tensors)
    size = sum(one.untyped_storage().nbytes() for one in own)
    count = 1
    if device.type != "cpu" and size:
        free, _ = torch.cuda.mem_get_info(device)
        count += min(_MOST - 1, min(_MOST_BYTES, free // _SHARE) // size)
    more = (tuple(map(_copy, own)) for _ in range(count - 1))
    return Copies(tensors, (own, *more))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* in memory of its own, with all of its storage: padding has its strides."""
    storage: Any = tensor.untyped_storage()  # its clone is untyped
    layout = tensor.storage_offset(), tensor.size(), tensor.stride()
    return tensor.new_empty(0).set_(storage.clone(), *layout)
