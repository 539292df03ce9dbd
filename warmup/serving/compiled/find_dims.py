"""Which dims of a model's inputs grow with the sizes of a bucket."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from warmup.buckets.bucket import Bucket
from warmup.core.errors import ModelError
from warmup.models.loading import Inputs


def find_dims(
    model: nn.Module, make: Callable[[Bucket], Inputs], bucket: Bucket
) -> dict[str, dict[int, str]]:
    """Return the ``dims`` of `warmup.compile` for the inputs that *make* gives in *bucket*.

    Each dim there is as long as the size that it is named after.

    Raises:
        ModelError: a dim grows with a size and is not that size, no dim grows with it, or there
            are other tensors for another size.
    """
    found: dict[str, dict[int, str]] = {}
    here = _shapes(model, make(bucket))
    for name, size in bucket.sizes:
        other = 1 if size > 1 else 2
        there = _shapes(model, make(bucket.at({name: other})))
        if {path: len(shape) for path, shape in here.items()} != {
            path: len(shape) for path, shape in there.items()
        }:
            raise ModelError(f"the inputs for {name}={size} and {name}={other} are not alike")
        grown = [
            (path, dim, pair)
            for path, shape in here.items()
            for dim, pair in enumerate(zip(shape, there[path], strict=True))
            if pair[0] != pair[1]
        ]
        for path, dim, pair in grown:
            if pair != (size, other):
                raise ModelError(
                    f"input {path}, dim {dim} is {pair[0]} where {name}={size}, and {pair[1]} "
                    f"where {name}={other}",
                    "only dims of that size itself can have a range: use exact buckets",
                )
            found.setdefault(path, {})[dim] = name
        if not grown:
            raise ModelError(f"no input grows with {name}", "name the dims that the inputs have")
    return found


def _shapes(model: nn.Module, inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a call, by its path as ``dims`` spells it."""
    try:
        named = inspect.signature(model.forward).bind_partial(*inputs.args).arguments
    except TypeError as error:
        raise ModelError(f"forward does not take the inputs made for it ({error})") from error
    return dict(_walk({**named, **inputs.kwargs}, ()))


def _walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(value, torch.Tensor):
        yield ".".join(map(str, path)), tuple(value.shape)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from _walk(inner, (*path, place))
