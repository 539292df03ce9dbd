"""`find_dims`: which dims of a model's inputs grow with the sizes of a bucket."""

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
    model: nn.Module, make_inputs: Callable[[Bucket], Inputs], bucket: Bucket
) -> dict[str, dict[int, str]]:
    """Return the ``dims`` argument of `warmup.compile` for the inputs of *bucket*.

    Each of these dims is equal to the size of the bucket that it is named after.

    Raises:
        ModelError: a dim grows with a size without being equal to it, no dim grows with a size, or
            the number of tensors or of their dims does.
    """
    dims: dict[str, dict[int, str]] = {}
    shapes = _shapes(model, make_inputs(bucket))
    for name, size in bucket.sizes:
        other = 1 if size > 1 else 2
        other_shapes = _shapes(model, make_inputs(bucket.at({name: other})))
        if {path: len(shape) for path, shape in shapes.items()} != {
            path: len(shape) for path, shape in other_shapes.items()
        }:
            raise ModelError(f"the inputs for {name}={size} and {name}={other} are not alike")
        grown = [
            (path, dim, pair)
            for path, shape in shapes.items()
            for dim, pair in enumerate(zip(shape, other_shapes[path], strict=True))
            if pair[0] != pair[1]
        ]
        for path, dim, pair in grown:
            if pair != (size, other):
                raise ModelError(
                    f"input {path}, dim {dim} is {pair[0]} where {name}={size}, and {pair[1]} "
                    f"where {name}={other}",
                    "only dims of that size itself can have a range: use exact buckets",
                )
            dims.setdefault(path, {})[dim] = name
        if not grown:
            raise ModelError(f"no input grows with {name}", "name the dims that the inputs have")
    return dims


def _shapes(model: nn.Module, inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a call, by its path in ``dims``."""
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
        for index, inner in enumerate(value):
            yield from _walk(inner, (*path, index))
