"""`shortened`: a model with most of its repeated layers left out for a while, to compile it faster.

In a run of equal layers the first, a middle and the last one ask inductor for the same GEMMs as the
whole run: a model with these three needs the same GEMM rows and compiles in the time of three.

Kernels that inductor generates between GEMMs need more layers. Inductor fuses the additions of
several layers to the residual stream into one kernel, and starts a new kernel after as many inputs
as one may read: in Llama's layers the pattern repeats every two layers (torch 2.11 to 2.15;
compared: five layers with thirteen, six with twelve). So five or six layers stay there, and the
number of layers left out is even.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final

import torch
from torch import nn

from warmup.models.weight_groups import is_hooked

_Pairs = set[tuple[nn.Module, nn.Module]]
_KEPT_FOR_GEMMS: Final = 3  # the first, a middle and the last layer
_KEPT_FOR_KERNELS: Final = 5  # one more where an odd number would be left out
_COMPARED_TYPES: Final = (
    *(bool, int, float, complex, str, bytes, type(None), Enum, set, frozenset),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


@contextlib.contextmanager
def shortened(model: nn.Module, *, has_kernels: bool) -> Iterator[int]:
    """Leave out repeated layers of *model* while the context is open; its value: how many.

    Of more than three equal neighbours in a `ModuleList` or `Sequential` the first two and the last
    stay. With *has_kernels*, generated kernels between GEMMs are tuned too: five or six stay, the
    last among them. Equal layers have the same classes, names and plain attributes, and tensors of
    the same sizes, strides and dtypes; an attribute may also be the layer's index in its list.
    Layers and lists with a hook, or that are reached in several ways, stay.
    """
    children = (each for one in model.modules() for each in vars(one)["_modules"].values())
    holders = Counter(child for child in children if child is not None)
    shared = {module for module, count in holders.items() if count > 1}
    before = {
        container: vars(container)["_modules"]
        for container in model.modules()
        if isinstance(container, nn.ModuleList | nn.Sequential)
        if container not in shared and not is_hooked(container)
    }
    kept = {
        container: _kept_indices([*layers.values()], shared, has_kernels=has_kernels)
        for container, layers in before.items()
    }
    try:
        for container, indices in kept.items():
            vars(container)["_modules"] = _select(container, indices)
        yield sum(len(before[container]) - len(indices) for container, indices in kept.items())
    finally:
        for container, layers in before.items():
            vars(container)["_modules"] = layers


def _kept_indices(
    layers: Sequence[nn.Module | None], shared: set[nn.Module], *, has_kernels: bool
) -> list[int]:
    runs: list[list[int]] = []
    for index, layer in enumerate(layers):
        first = runs[-1][0] if runs else index
        if first < index and _are_equal_layers(layers[first], layer, (first, index), shared):
            runs[-1].append(index)
        else:
            runs.append([index])
    kept = []
    for run in runs:
        is_odd = (len(run) - _KEPT_FOR_KERNELS) % 2
        limit = _KEPT_FOR_KERNELS + is_odd if has_kernels else _KEPT_FOR_GEMMS
        kept += run if len(run) <= limit else [*run[: limit - 1], run[-1]]
    return kept


def _are_equal_layers(
    one: nn.Module | None, other: nn.Module | None, indices: tuple[int, int], shared: set[nn.Module]
) -> bool:
    if one is None or other is None:
        return False
    modules = (*one.modules(), *other.modules())
    if any(module in shared or is_hooked(module) for module in modules):
        return False
    return _are_equal(one, other, indices, set())


def _are_equal(value: Any, other: Any, indices: tuple[int, int], visited: _Pairs) -> bool:
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if isinstance(value, nn.Module):
        if (value, other) in visited:
            return True
        visited.add((value, other))
        return _are_equal(vars(value), vars(other), indices, visited)
    if isinstance(value, torch.Tensor):
        return _layout_of(value) == _layout_of(other)
    if isinstance(value, dict):
        return [*value] == [*other] and all(
            _are_equal(inner, other[name], indices, visited) for name, inner in value.items()
        )
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(
            _are_equal(*pair, indices, visited) for pair in zip(value, other, strict=True)
        )
    is_index = type(value) is int and (value, other) == indices
    return is_index or (isinstance(value, _COMPARED_TYPES) and bool(value == other))


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad


def _select(container: nn.Module, indices: Sequence[int]) -> dict[str, nn.Module]:
    layers = [*vars(container)["_modules"].items()]
    is_numbered = isinstance(container, nn.ModuleList)  # a ModuleList looks layers up by number
    return {
        str(number) if is_numbered else layers[index][0]: layers[index][1]
        for number, index in enumerate(indices)
    }
