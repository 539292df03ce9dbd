"""The weights of a model in several places, so that calls in turn find them in no cache. Floor 2.

In a server the weights of other layers pass through the L2 between two calls of a layer, while its
inputs and its kernels are there again. So weights alone are moved. What is compiled takes them as
arguments, and is compiled once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

_MOST_PLACES: Final = 64
_MOST_BYTES: Final = 2**31
_SHARE: Final = 8  # of the memory that is free, the part that copies may take


@dataclass(frozen=True, slots=True)
class Places:
    """``tensors`` of a model, and for each place their contents there; the first is their own."""

    tensors: tuple[torch.Tensor, ...]
    contents: tuple[tuple[torch.Tensor, ...], ...]

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, number: int) -> None:
        """Let the model have its weights in the place of that number, modulo those there are."""
        found = self.contents[number % len(self.contents)]
        for tensor, content in zip(self.tensors, found, strict=True):
            tensor.data = content


def scatter(module: nn.Module, device: torch.device) -> Places:
    """Return *module*'s parameters and buffers in as many places as *device* has room for, 64 most.

    They take 2 GiB or an eighth of the free memory at most, beside their own; it is one place where
    there is no room, and on a CPU, whose kernels may have packed the weights away. Tensors of other
    classes than torch's own stay where they are.
    """
    every = dict.fromkeys((*module.parameters(), *module.buffers()))
    tensors = tuple(one for one in every if type(one.data) is torch.Tensor)
    own = tuple(one.data for one in tensors)
    size = sum(one.untyped_storage().nbytes() for one in own)
    count = 1
    if device.type != "cpu" and size:
        free, _ = torch.cuda.mem_get_info(device)
        count += min(_MOST_PLACES - 1, min(_MOST_BYTES, free // _SHARE) // size)
    copies = (tuple(map(_copy, own)) for _ in range(count - 1))
    return Places(tensors, (own, *copies))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* in memory of its own, with all of its storage: padding has its strides."""
    storage: Any = tensor.untyped_storage()  # its clone is untyped
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    return tensor.new_empty(0).set_(storage.clone(), *place)
