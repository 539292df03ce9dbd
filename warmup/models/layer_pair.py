"""`CalledPair`: two consecutive layers of a model, as they were called, and as one module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from warmup.inductor.layers.artifact import LayerArtifact
from warmup.inductor.layers.compiler import Ranges
from warmup.inductor.layers.form import Path, tensors_of_call
from warmup.inductor.layers.opaque_call import Tensors

_RESULT: Final = 2  # of the first layer, beside its args and kwargs


@dataclass(frozen=True, slots=True)
class CalledLayer:
    """A layer, its artifact and its place in the program, and a call with its result."""

    name: str
    layer: nn.Module
    artifact: LayerArtifact
    number: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any

    @property
    def inputs(self) -> Tensors:
        """The tensors that the artifact gets from the call."""
        tensors = dict(tensors_of_call(self.args, self.kwargs))
        return [tensors[path] for path in self.artifact.paths]


@dataclass(frozen=True, slots=True)
class CalledPair:
    """Two layers of a group of ``layers``, the second called with what the first returned.

    ``ranges`` are those of the first layer's arguments.
    """

    first: CalledLayer
    second: CalledLayer
    module: LayerPair
    layers: int
    ranges: Ranges

    @property
    def device(self) -> torch.device:
        """The device that the layers work on."""
        return self.first.inputs[0].device

    @property
    def name(self) -> str:
        """The names of both layers."""
        return f"{self.first.name} and {self.second.name}"


class _TensorPlace(NamedTuple):
    """Where a tensor of the second call is: in the first call's args, kwargs or result."""

    path: Path


class LayerPair(nn.Module):
    """The layer *first* and then *second*, whose call is *call* with places for its tensors."""

    def __init__(self, first: nn.Module, second: nn.Module, call: Any) -> None:
        super().__init__()
        self.first, self.second, self.call = first, second, call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the second layer returns where the first is called with these arguments."""
        found = args, kwargs, self.first.forward(*args, **kwargs)
        second_args, second_kwargs = _filled(self.call, found)
        return self.second.forward(*second_args, **second_kwargs)


def pair_of(
    first: CalledLayer, second: CalledLayer, layers: int, ranges: Ranges
) -> CalledPair | None:
    """Return both layers as a pair; None if the second does not follow from the first's call.

    It does where each of its tensors is one that the first was called with or returned, and one
    of them was returned.
    """
    values = (first.args, first.kwargs, first.result)
    places: dict[int, Path] = {}
    for number, value in enumerate(values):
        for path, tensor in tensors_of_call((value,), {}):
            places.setdefault(id(tensor), (number, *path[2:]))
    needed = [places.get(id(each)) for _, each in tensors_of_call(second.args, second.kwargs)]
    if None in needed or all(path is None or path[0] != _RESULT for path in needed):
        return None
    call = _emptied((second.args, dict(second.kwargs)), places)
    return CalledPair(first, second, LayerPair(first.layer, second.layer, call), layers, ranges)


def _emptied(value: Any, places: Mapping[int, Path]) -> Any:
    if type(value) is dict:
        return {key: _emptied(inner, places) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_emptied(inner, places) for inner in value)
    return _TensorPlace(places[id(value)]) if isinstance(value, torch.Tensor) else value


def _filled(value: Any, found: Any) -> Any:
    if type(value) is dict:
        return {key: _filled(inner, found) for key, inner in value.items()}
    if type(value) is list:
        return [_filled(inner, found) for inner in value]
    if type(value) is tuple:
        return tuple([_filled(inner, found) for inner in value])
    if isinstance(value, _TensorPlace):
        for key in value.path:
            found = found[key]
        return found
    return value
