"""`work_of_operator`: operations and bytes of one call, from the shapes that the profiler recorded.

Operations are multiplications and additions of matmuls, convolutions and attention, the same that
torch.utils.flop_counter counts. Bytes are each operand and the result once.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmup.core.dtypes import dtype_name, item_bytes
from warmup.core.roofline import Work
from warmup.diagnostics.profile.trace import HostOperator

# The profiler writes C++'s names of dtypes (c10/util/typeid, caffe2::TypeMeta::name).
_CPP_DTYPES: Final = {
    "float": "f32",
    "double": "f64",
    "c10::Half": "f16",
    "c10::BFloat16": "bf16",
    "long int": "i64",
    "long": "i64",
    "int": "i32",
    "short int": "i16",
    "signed char": "i8",
    "unsigned char": "u8",
    "bool": "bool",
    "c10::complex<float>": "c64",
    "c10::Float8_e4m3fn": "f8_e4m3fn",
    "c10::Float8_e5m2": "f8_e5m2",
}
_MATRIX: Final = 2
TEMPLATE_PREFIX: Final = "triton_tem_"  # of the kernels of inductor's GEMM templates
_OVERLOAD: Final = re.compile(r"^(?:aten|mkl|mkldnn|onednn)::")
TensorSizes = Sequence[int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand as the profiler recorded it."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.sizes) * item_bytes(self.dtype)


@functools.cache
def tensors_of(operator: HostOperator) -> list[Tensor | None]:
    """Return the arguments of *operator* in order, None for each that is no tensor.

    Empty where the profiler recorded no shapes.
    """
    dims, types = operator.arguments.get("Input Dims"), operator.arguments.get("Input type")
    strides = operator.arguments.get("Input Strides")
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    steps = strides if isinstance(strides, list) else [[] for _ in dims]
    found: list[Tensor | None] = []
    for sizes, step, name in zip(dims, steps, types, strict=False):
        dtype = _CPP_DTYPES.get(str(name)) or _plain_dtype(str(name))
        is_tensor = dtype is not None and isinstance(sizes, list) and _are_sizes(sizes)
        is_tensor = is_tensor and not (sizes == [] and step == [] and name in ("Scalar", ""))
        found.append(Tensor(tuple(sizes), tuple(step), str(dtype)) if is_tensor else None)
    return found


@functools.cache
def work_of_operator(operator: HostOperator) -> Work | None:
    """Return the work of one call of *operator*; its operations are None where they are not known.

    None where the profiler recorded no shapes. A recorded flop count of a generated kernel counts.
    """
    tensors = tensors_of(operator)
    present = [each for each in tensors if each is not None]
    if not present:
        return None
    name = _OVERLOAD.sub("", operator.name)
    formula = _FORMULAS.get(name)
    dtype = present[0].dtype
    if formula is not None:
        try:
            flops, written = formula(tensors, _concrete(operator))
        except (AttributeError, IndexError, TypeError, ValueError):
            pass  # other arguments than this formula's: as for an operator without one
        else:
            read = [each.bytes for each in _operands(name, tensors)]
            return Work(_dtype(tensors), flops, sum(read) + written * item_bytes(dtype))
    recorded = operator.arguments.get("kernel_flop")
    counted = recorded if isinstance(recorded, int) and recorded > 0 else None
    if counted is None and name.startswith(TEMPLATE_PREFIX):
        counted = _template_flops(name, present)
    return Work(dtype, counted, sum(each.bytes for each in present))


Formula = Callable[[list[Any], list[Any]], tuple[int, int]]  # operations, elements written


def _mm(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    (m, k), (_, n) = tensors[0].sizes, tensors[1].sizes
    return 2 * m * n * k, m * n


def _bmm(tensors: list[Any], _concrete: list[Any]) -> tuple[int, int]:
    (batch, m, k), (_, _, n) = tensors[0].sizes, tensors[1].sizes
    return 2 * batch * m * n * k, batch * m * n


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
    dims = len(x) - _MATRIX
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


_FORMULAS: Final[dict[str, Formula]] = {
    "mm": _mm,
    "_scaled_mm": _mm,
    "_int_mm": _mm,
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
_OPERANDS_READ: Final = {"mm": 2, "_scaled_mm": 4, "_int_mm": 2, "bmm": 2, "addmm": 3, "baddbmm": 3}


def has_formula(operator: HostOperator) -> bool:
    """Return whether the operations of *operator* are known from its shapes."""
    return _OVERLOAD.sub("", operator.name) in _FORMULAS


def _operands(name: str, tensors: list[Tensor | None]) -> list[Tensor]:
    return [each for each in tensors[: _OPERANDS_READ.get(name, 3)] if each is not None]


def _dtype(tensors: list[Tensor | None]) -> str:
    return next(each.dtype for each in tensors if each is not None)


def _concrete(operator: HostOperator) -> list[Any]:
    given = operator.arguments.get("Concrete Inputs")
    return [_literal(each) for each in given] if isinstance(given, list) else []


def _literal(text: Any) -> Any:
    try:
        return ast.literal_eval(str(text))
    except (SyntaxError, ValueError):
        return text


def _sizes(value: Any) -> TensorSizes:
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, (list, tuple)) or not _are_sizes(value):
        raise ValueError(f"no sizes: {value!r}")
    return tuple(value)


def _spread(sizes: TensorSizes, dims: int) -> TensorSizes:
    return tuple(sizes) * dims if len(sizes) == 1 else sizes


def _are_sizes(values: Sequence[Any]) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) for each in values)


def _plain_dtype(name: str) -> str | None:
    short = dtype_name(name)
    return short if re.fullmatch(r"(?:bf|f|i|u)[0-9]+(?:_\w+)?", short) else None


def _template_flops(name: str, tensors: Sequence[Tensor]) -> int | None:
    """Return the operations of a template's kernel, whose arguments have no order of their own.

    Three of its tensors have the sizes m k, k n and m n, in any order and transposed or not. None
    where no three have, or where several three give different operations.
    """
    is_batched = "bmm" in name
    sizes = set()
    for each in tensors:
        if len(each.sizes) < _MATRIX:
            continue
        *outer, rows, columns = each.sizes
        batch = math.prod(outer) if is_batched else 1
        rows = rows if is_batched else rows * math.prod(outer)
        sizes.add((batch, *sorted((rows, columns))))
    found = {
        2 * batch * math.isqrt(math.prod(a + b + c))
        for (batch, *a), (batch_b, *b), (batch_c, *c) in itertools.combinations_with_replacement(
            sorted(sizes), 3
        )
        if batch == batch_b == batch_c and _is_product(a, b, c)
    }
    return found.pop() if len(found) == 1 else None


def _is_product(a: Sequence[int], b: Sequence[int], c: Sequence[int]) -> bool:
    """Whether *a*, *b* and *c* are pairs of three sizes, each pair another one."""
    shared = Counter(a) & Counter(b)
    return any(
        sorted(c) == sorted((a[0] if a[1] == k else a[1], b[0] if b[1] == k else b[1]))
        for k in shared
    )
