"""Layers that repeat, all but a few of a row of them left out for a while.

What alike neighbours ask of products is what the first, one between two of its kind and the last
ask: a model of those three asks for the rows of all, and compiles in the time of three.

Kernels that are generated between products want more. Inductor adds what several layers leave on
the residual stream in one of them, and begins anew after as many additions as a kernel may read: in
Llama's layers what it reads is the same again after two (torch 2.11 to 2.15, five against thirteen
layers, six against twelve). So five stay there, or six, and those left out are even in number.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final

import torch
from torch import nn

from warmup.models.padding.tracing import is_hooked

_OF_PRODUCTS: Final = 3  # the first, one between two of its kind, and the last
_OF_KERNELS: Final = 5  # and one more where an odd number would be left out
_COMPARED_TYPES: Final = (
    *(bool, int, float, complex, str, bytes, type(None), Enum, set, frozenset),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


@contextlib.contextmanager
def shortened(model: nn.Module, *, has_kernels: bool) -> Iterator[int]:
    """Leave out what repeats in the lists of *model*; its lists are as they were afterwards.

    Of more than three neighbours in a `ModuleList` or `Sequential` that are alike, the first two
    and the last stay; where it *has_kernels* between its products that are asked about, five or
    six, the last among them. Alike are modules of the same classes, names, plain attributes and
    sizes, strides and dtypes of tensors; an attribute may also be the module's place in its list.
    Modules that are watched by a hook or stand in several places stay. The value is how many are
    left out.
    """
    shared = _shared(model)
    before = {
        one: vars(one)["_modules"]
        for one in model.modules()
        if isinstance(one, nn.ModuleList | nn.Sequential)
        if one not in shared and not is_hooked(one)
    }
    kept = {
        one: _kept([*modules.values()], shared, has_kernels=has_kernels)
        for one, modules in before.items()
    }
    try:
        for one, places in kept.items():
            vars(one)["_modules"] = _part(one, places)
        yield sum(len(before[one]) - len(places) for one, places in kept.items())
    finally:
        for one, modules in before.items():
            vars(one)["_modules"] = modules


def _shared(model: nn.Module) -> set[nn.Module]:
    """Return the modules of *model* that stand in several places."""
    places = Counter(
        inner
        for one in model.modules()
        for inner in vars(one)["_modules"].values()
        if inner is not None
    )
    return {one for one, count in places.items() if count > 1}


def _kept(
    layers: Sequence[nn.Module | None], shared: set[nn.Module], *, has_kernels: bool
) -> list[int]:
    """Return the places of those of *layers* that stay."""
    runs: list[list[int]] = []
    for place, layer in enumerate(layers):
        first = runs[-1][0] if runs else place
        if first < place and _is_like(layers[first], layer, (first, place), shared):
            runs[-1].append(place)
        else:
            runs.append([place])
    stay = []
    for run in runs:
        most = _OF_KERNELS + (len(run) - _OF_KERNELS) % 2 if has_kernels else _OF_PRODUCTS
        stay += run if len(run) <= most else [*run[: most - 1], run[-1]]
    return stay


def _is_like(
    one: nn.Module | None,
    other: nn.Module | None,
    places: tuple[int, int],
    shared: set[nn.Module],
) -> bool:
    if one is None or other is None:
        return False
    if any(each in shared or is_hooked(each) for each in (*one.modules(), *other.modules())):
        return False
    return _is_same(one, other, places, set())


def _is_same(
    one: Any, other: Any, places: tuple[int, int], begun: set[tuple[nn.Module, nn.Module]]
) -> bool:
    """Whether *one* is as *other*, or both are *places*; modules may refer to what is *begun*."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Module):
        if (one, other) in begun:
            return True
        begun.add((one, other))
        return _is_same(vars(one), vars(other), places, begun)
    if isinstance(one, torch.Tensor):
        return _form(one) == _form(other)
    if isinstance(one, dict):
        return [*one] == [*other] and all(
            _is_same(value, other[name], places, begun) for name, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(
            _is_same(*pair, places, begun) for pair in zip(one, other, strict=True)
        )
    is_numbered = type(one) is int and (one, other) == places
    return is_numbered or (isinstance(one, _COMPARED_TYPES) and bool(one == other))


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad


def _part(one: nn.Module, places: Sequence[int]) -> dict[str, nn.Module]:
    """Return the modules of *one* at *places*, named as *one* finds them."""
    modules = [*vars(one)["_modules"].items()]
    counts = isinstance(one, nn.ModuleList)  # it looks its modules up by number
    return {
        str(number) if counts else modules[place][0]: modules[place][1]
        for number, place in enumerate(places)
    }
