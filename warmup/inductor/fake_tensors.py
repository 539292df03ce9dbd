"""`fake_tensors`: the mode in which tensors have a shape, a dtype and a device, and no memory."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

import torch
from torch._subclasses import FakeTensorMode

__all__ = ["FakeTensorMode", "fake_like", "fake_mode", "fake_tensors"]


@contextlib.contextmanager
def fake_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """Make every new tensor a fake one of *mode* while the context is open, without gradients.

    Functions that the user compiled run uncompiled, and torch does not log an operation that fails:
    the exception alone says so.
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
    """Return the fake tensor of *mode* with the shape, strides, dtype and device of *tensor*.

    A tensor on the meta device becomes one on the CPU.
    """
    if tensor.is_meta:
        with mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    return mode.from_tensor(tensor.detach())


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled functions uncompiled; there are none before torch._dynamo is loaded."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
