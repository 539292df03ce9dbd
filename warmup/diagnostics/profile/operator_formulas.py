"""`FORMULAS`: operations and written elements of operators, from the sizes of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

MATRIX: Final = 2
TensorSizes = Sequence[int]
Formula = Callable[[list[Any], list[Any]], tuple[int, int]]  # operations, elements written


def _mm(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    (m, k), (_, n) = tensors[0].sizes, tensors[1].sizes
    return 2 * m * n * k, m * n


def _bmm(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    (batch, m, k), (_, _, n) = tensors[0].sizes, tensors[1].sizes
    return 2 * batch * m * n * k, batch * m * n


def _grouped(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    # Each row of a (or column of b, or step of the sum) belongs to one group, whichever it is.
    a, b = tensors[0].sizes, tensors[1].sizes
    (*groups_a, m, k), (*groups_b, _, n) = a, b
    if groups_a and groups_b:
        return _bmm(tensors, [])
    groups = 1 if groups_a or groups_b else math.prod(tensors[2].sizes)  # by the offsets
    return 2 * m * n * k, groups * m * n


def _scaled_grouped(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    # a, b, scale of a, scale of b, offsets
    return _grouped([*tensors[:2], tensors[4]], [])


def _after_bias(formula: Formula) -> Formula:
    return lambda tensors, concrete: formula(tensors[1:], concrete)


def _linear(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    n, k = tensors[1].sizes
    rows = math.prod(tensors[0].sizes[:-1])
    return 2 * rows * n * k, rows * n


def _mkl_linear(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    # input, packed weight, original weight, bias, batch size
    return _linear([tensors[0], tensors[2]], [])


def _convolution(tensors: list[Any], concrete: list[Any]) -> tuple[int, int]:
    # input, weight, bias, stride, padding, dilation, transposed, output padding, groups
    stride, padding, dilation = (_sizes(concrete[place]) for place in (3, 4, 5))
    is_transposed = len(concrete) > 6 and concrete[6] is True  # noqa: PLR2004  its place
    return _convolved(tensors, stride, padding, dilation, is_transposed=is_transposed)


def _transposed(tensors: list[Any], concrete: list[Any]) -> tuple[int, int]:
    # input, weight, bias, stride, padding, output padding, groups, dilation
    stride, padding, dilation = (_sizes(concrete[place]) for place in (3, 4, 7))
    return _convolved(tensors, stride, padding, dilation, is_transposed=True)


def _mkldnn_convolution(tensors: list[Any], concrete: list[Any]) -> tuple[int, int]:
    # input, weight, bias, padding, stride, dilation, groups
    padding, stride, dilation = (_sizes(concrete[place]) for place in (3, 4, 5))
    return _convolved(tensors, stride, padding, dilation, is_transposed=False)


def _cudnn_convolution(tensors: list[Any], concrete: list[Any]) -> tuple[int, int]:
    # input, weight, padding, stride, dilation, groups
    padding, stride, dilation = (_sizes(concrete[place]) for place in (2, 3, 4))
    return _convolved(tensors, stride, padding, dilation, is_transposed=False)


def _convolved(
    tensors: list[Any],
    stride: TensorSizes,
    padding: TensorSizes,
    dilation: TensorSizes,
    *,
    is_transposed: bool,
) -> tuple[int, int]:
    x, w = tensors[0].sizes, tensors[1].sizes
    dims = len(x) - MATRIX
    stride, padding, dilation = (_spread(each, dims) for each in (stride, padding, dilation))
    if is_transposed:  # each input element meets each weight of its channel
        flops = 2 * math.prod(x) * math.prod(w[1:])
        sizes = [
            (size - 1) * step - 2 * margin + gap * (kernel - 1) + 1
            for size, step, margin, gap, kernel in zip(
                x[2:], stride, padding, dilation, w[2:], strict=True
            )
        ]
        return flops, x[0] * w[1] * math.prod(sizes)
    sizes = [
        (size + 2 * margin - gap * (kernel - 1) - 1) // step + 1
        for size, step, margin, gap, kernel in zip(
            x[2:], stride, padding, dilation, w[2:], strict=True
        )
    ]
    written = x[0] * w[0] * math.prod(sizes)
    return 2 * written * math.prod(w[1:]), written


def _attention(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    # batch, heads, rows, width
    (batch, heads, rows, width), key, value = (each.sizes for each in tensors[:3])
    return 2 * batch * heads * rows * key[2] * (width + value[3]), batch * heads * rows * value[3]


def _attention_by_rows(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    # batch, rows, heads, width
    (batch, rows, heads, width), key, value = (each.sizes for each in tensors[:3])
    return 2 * batch * heads * rows * key[1] * (width + value[3]), batch * heads * rows * value[3]


FORMULAS: Final[dict[str, Formula]] = {
    "mm": _mm,
    "_scaled_mm": _mm,
    "_int_mm": _mm,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _scaled_grouped,
    "addmm": _after_bias(_mm),
    "_addmm_activation": _after_bias(_mm),
    "bmm": _bmm,
    "baddbmm": _after_bias(_bmm),
    "linear": _linear,
    "_mkl_linear": _mkl_linear,
    "_linear_pointwise": _linear,
    "_convolution_pointwise": _mkldnn_convolution,
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys((f"conv_transpose{dims}d" for dims in (1, 2, 3)), _transposed),
    "cudnn_convolution": _cudnn_convolution,
    **dict.fromkeys(
        (
            *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention"),
            *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
            *("_scaled_dot_product_flash_attention_for_cpu", "_cudnn_attention_forward"),
        ),
        _attention,
    ),
    **dict.fromkeys(
        ("_flash_attention_forward", "_efficient_attention_forward"), _attention_by_rows
    ),
}
# How many first arguments are read; an ``out`` argument comes after them.
OPERANDS_READ: Final = {
    **dict.fromkeys(("mm", "_int_mm", "bmm", "_grouped_mm"), 2),
    **dict.fromkeys(("addmm", "baddbmm"), 3),
    **dict.fromkeys(("_scaled_mm", "_scaled_grouped_mm"), 4),
}


def _sizes(value: Any) -> TensorSizes:
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, (list, tuple)) or not are_sizes(value):
        raise ValueError(f"no sizes: {value!r}")
    return tuple(value)


def _spread(sizes: TensorSizes, dims: int) -> TensorSizes:
    return tuple(sizes) * dims if len(sizes) == 1 else sizes


def are_sizes(values: Sequence[Any]) -> bool:
    """Return whether *values* are whole numbers."""
    return all(isinstance(each, int) and not isinstance(each, bool) for each in values)
