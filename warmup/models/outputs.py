"""`output_errors` and `worst_error`: how far the outputs of a model are from a reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from warmup.core.dtypes import dtype_name

_CHUNK: Final = 2**24  # elements compared at once in float64, 128 MiB for each of several copies


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors in the nested *outputs*, in order."""
    leaves = torch.utils._pytree.tree_leaves(outputs)  # noqa: SLF001  torch's own tree walk has no public name
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def output_errors(expected: Any, actual: Any) -> list[float]:
    """Return the relative L2 error of each tensor of *actual* over its tensor of *expected*.

    Both are nested outputs of the same structure; dtypes and devices may differ. Elements that are
    infinite or NaN in both alike are equal. The error is infinite where only one of two elements is
    finite. A reference of zeros has the absolute error.

    Raises:
        ValueError: the outputs have different numbers of tensors.
    """
    pairs = zip(tensors_of(expected), tensors_of(actual), strict=True)
    return [_relative_error(reference, tensor) for reference, tensor in pairs]


def worst_error(expected: Any, actual: Any, tolerance: Mapping[str, float]) -> tuple[float, float]:
    """Return the relative L2 error of *actual* over *expected*, and its limit in *tolerance*.

    Both are nested outputs of the same structure. The pair is that of the tensor that is furthest
    above its limit, or closest to it. Limits are by dtype of *expected*; a dtype without a limit
    has the limit 0.
    """
    errors, limits = output_errors(expected, actual), output_limits(expected, tolerance)
    worst = worst_tensor(errors, limits)
    return (0.0, 1.0) if worst is None else (errors[worst], limits[worst])


def output_limits(outputs: Any, tolerance: Mapping[str, float]) -> list[float]:
    """Return the limit of each tensor of *outputs* in *tolerance*, by dtype; 0 without a limit."""
    return [tolerance.get(dtype_name(tensor.dtype), 0.0) for tensor in tensors_of(outputs)]


def worst_tensor(errors: list[float], limits: list[float]) -> int | None:
    """Return the number of the tensor with the largest of *errors* over *limits*; None for none."""

    def share(number: int) -> float:
        error, limit = errors[number], limits[number]
        return error / limit if limit else math.inf if error else 0.0

    return max(range(len(errors)), key=share, default=None)


def _relative_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    squares = distances = 0.0
    if expected.shape != actual.shape:
        return math.inf
    actual = actual.to(expected.device)
    for exact, other in zip(_chunks(expected), _chunks(actual), strict=True):
        finite = exact.isfinite()
        same = (exact == other) | (exact.isnan() & other.isnan())
        if not bool((same | (finite & other.isfinite())).all()):
            return math.inf
        squares += float(exact.masked_fill(~finite, 0).square().sum())
        distances += float((other - exact).masked_fill(same, 0).square().sum())
    return math.sqrt(distances / squares) if squares else math.sqrt(distances)


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the elements of *tensor* in order, as float64, some at a time."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        yield torch.view_as_real(chunk.to(wide)) if wide is torch.complex128 else chunk.to(wide)
