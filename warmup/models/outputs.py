"""`output_errors` and `worst_error`: how far the outputs of a model are from a reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from warmup.core.dtypes import dtype_name
from warmup.core.error_text import first_line
from warmup.core.errors import ModelError

_CHUNK: Final = 2**24  # elements compared at once in float64, 128 MiB for each of several copies


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors in the nested *outputs*, in order."""
    leaves = torch.utils._pytree.tree_leaves(outputs)  # noqa: SLF001  torch's own tree walk has no public name
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def output_errors(expected: Any, actual: Any) -> list[float]:
    """Return the relative L2 error of each tensor of *actual* over its tensor of *expected*.

    Both are nested outputs of the same structure; dtypes and devices may differ. Elements that are
    infinite or NaN in both alike are equal. The error is infinite where only one of two elements is
    finite. A reference of zeros has the absolute error. Tensors are compared by `dense_parts`.

    Raises:
        ModelError: a tensor has no dense form.
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
    dtypes = (torch.float32 if one.is_quantized else one.dtype for one in tensors_of(outputs))
    return [tolerance.get(dtype_name(dtype), 0.0) for dtype in dtypes]


def worst_tensor(errors: list[float], limits: list[float]) -> int | None:
    """Return the number of the tensor with the largest of *errors* over *limits*; None for none."""

    def share(number: int) -> float:
        error, limit = errors[number], limits[number]
        return error / limit if limit else math.inf if error else 0.0

    return max(range(len(errors)), key=share, default=None)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether *tensor* is a dense tensor of torch's own class, which has one storage."""
    is_own = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_own and tensor.layout is torch.strided and not tensor.is_nested


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return *tensor* as dense tensors: the tensors of a nested tensor, else a single tensor.

    A sparse tensor has its zeros in it, a quantized tensor is dequantized.

    Raises:
        ModelError: it has no dense form.
    """
    try:
        if tensor.is_nested:
            return [*tensor.detach().unbind()]
        if tensor.is_quantized or type(tensor).dequantize is not torch.Tensor.dequantize:
            dense = tensor.dequantize()
        else:
            dense = tensor if tensor.layout is torch.strided else tensor.detach().to_dense()
        if not is_plain(dense):
            dense.detach().reshape(-1)[:1].to(torch.float64)  # as it is compared
    except Exception as error:
        what = f"tensor of {type(tensor).__name__}, layout {tensor.layout},"
        problem = f"a {what} has no dense form to compare: {first_line(error)}"
        raise ModelError(problem, "let the model return a dense tensor") from error
    return [dense]


def _relative_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    squares = distances = 0.0
    exacts, others = dense_parts(expected), dense_parts(actual)
    if [each.shape for each in exacts] != [each.shape for each in others]:
        return math.inf
    for exact, other in itertools.chain(*map(_chunk_pairs, exacts, others)):
        finite = exact.isfinite()
        same = (exact == other) | (exact.isnan() & other.isnan())
        if not bool((same | (finite & other.isfinite())).all()):
            return math.inf
        squares += float(exact.masked_fill(~finite, 0).square().sum())
        distances += float((other - exact).masked_fill(same, 0).square().sum())
    return math.sqrt(distances / squares) if squares else math.sqrt(distances)


def _chunk_pairs(
    expected: torch.Tensor, actual: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(_chunks(expected), _chunks(actual.to(expected.device)), strict=True)


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the elements of *tensor* in order, as float64, some at a time."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        yield torch.view_as_real(chunk.to(wide)) if wide is torch.complex128 else chunk.to(wide)
