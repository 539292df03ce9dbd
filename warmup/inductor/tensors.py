"""`fake_tensors`: the mode in which tensors have a shape, a dtype and a device, and no memory."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._inductor import config as inductor_config
from torch._subclasses import FakeTensorMode

__all__ = [
    "FakeTensorMode",
    "StaticInput",
    "StaticInputs",
    "fake_like",
    "fake_mode",
    "fake_tensors",
]


@contextlib.contextmanager
def fake_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """Make every new tensor a fake one of *mode* while the context is open, without gradients.

    Compiled functions run uncompiled, and torch does not log an operation that fails.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        with mode, torch.no_grad(), _uncompiled():
            yield
    finally:
        log.disabled = was_disabled


def fake_mode() -> FakeTensorMode:
    """Return a mode in which fake tensors and real constants may meet."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return the fake tensor of *mode* like *tensor*, on the CPU for one on the meta device."""
    if tensor.is_meta:
        with mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    return mode.from_tensor(tensor.detach())


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


Place = tuple[str | int, ...]  # of a tensor in the arguments of a call


class StaticInput:
    """Memory for a tensor like *tensor* with *sizes* by dim, where `fill` puts smaller ones."""

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
