"""`unwritten`: a run of a model that leaves its attributes, buffers and arguments as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from warmup.inductor.layers.form import tensors_of_call
from warmup.models.proved_layers import NotSharedError


@contextlib.contextmanager
def unwritten(
    model: nn.Module, layers: Mapping[nn.Module, object], args: Sequence[Any], kwargs: Any
) -> Iterator[None]:
    """Undo what a run writes into attributes, buffers and arguments while the context is open.

    Raises:
        NotSharedError: a tensor was written into; it has its values from before again.
    """
    inner = {module for layer in layers for module in layer.modules()}
    outside = [module for module in model.modules() if module not in inner]
    attributes = {module: dict(vars(module)) for module in outside}
    tensors = [tensor for _, tensor in tensors_of_call(args, kwargs)]
    tensors += [buffer for module in outside for buffer in module.buffers(recurse=False)]
    copies = [tensor.detach().clone() for tensor in tensors]
    versions = [_version_of(tensor) for tensor in tensors]
    is_written = False
    try:
        yield
    finally:
        for module, before in attributes.items():
            now = vars(module)
            if now.keys() != before.keys() or any(now[name] is not before[name] for name in now):
                now.clear()
                now.update(before)
        for tensor, copy, version in zip(tensors, copies, versions, strict=True):
            if _version_of(tensor) != version or (
                version is None and not torch.equal(tensor, copy)
            ):
                is_written = True
                with torch.no_grad():
                    tensor.copy_(copy)
    if is_written:
        raise NotSharedError("the model writes into a buffer or an argument")


def _version_of(tensor: torch.Tensor) -> int | None:
    """Return how often *tensor* was written into; None for a tensor of inference mode."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001  has no public name
