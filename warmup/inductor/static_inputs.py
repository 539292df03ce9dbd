"""`StaticInputs`: inputs of any size, padded with zeros in memory that stays where it is.

A CUDA graph reads its inputs at fixed addresses. torch copies an input to such an address at each
replay, unless the input is marked as being at one already (torch/_inductor/cudagraph_trees.py).
Padding into marked memory therefore takes one copy, where padding into new memory takes an
allocation, a fill and two copies.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._inductor import config as inductor_config

Place = tuple[str | int, ...]  # of a tensor in the arguments of a call


class StaticInput:
    """Memory for a tensor with *sizes* by dim, where `fill` puts tensors with smaller sizes.

    It has the other sizes, the dtype and the device of *tensor*, and its values.
    """

    def __init__(self, tensor: torch.Tensor, sizes: Mapping[int, int]) -> None:
        after = [0, 0] * tensor.dim()
        for dim, size in sizes.items():
            after[2 * (tensor.dim() - 1 - dim) + 1] = size - tensor.shape[dim]
        # A tensor made in inference mode could not be written outside of it.
        with torch.inference_mode(mode=False), torch.no_grad():
            self.tensor = nn.functional.pad(tensor.detach(), after)
        self._filled = {dim: int(tensor.shape[dim]) for dim in sizes}
        # A frozen graph takes marked inputs for constants (torch/_dynamo/variables/builder.py).
        if not inductor_config.freezing:
            torch._dynamo.mark_static_address(self.tensor)

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy *tensor* into the memory, set what is beyond its sizes to zero; return it all."""
        part = self.tensor
        for dim, before in self._filled.items():
            size = tensor.shape[dim]
            if size < before:
                self.tensor.narrow(dim, size, before - size).zero_()
            self._filled[dim] = size
            part = part.narrow(dim, 0, size)
        part.copy_(tensor.detach())
        return self.tensor


class StaticInputs(threading.local):
    """The static inputs of one graph, for each thread that calls it."""

    def __init__(self) -> None:
        self._inputs: dict[Any, StaticInput] = {}

    def fill(self, tensor: torch.Tensor, place: Place, sizes: Mapping[int, int]) -> torch.Tensor:
        """Return *tensor*, the argument at *place*, padded with zeros to *sizes* by dim.

        What is returned is overwritten by the next tensor at this place in the same thread.
        """
        others = [size for dim, size in enumerate(tensor.shape) if dim not in sizes]
        key = (place, tensor.dtype, tensor.device, *others)
        static = self._inputs.get(key)
        if static is None:
            static = self._inputs[key] = StaticInput(tensor, sizes)
            return static.tensor
        return tensor if tensor is static.tensor else static.fill(tensor)
