"""`work_of_operator`: operations and bytes of one call, from the shapes that the profiler recorded.

Operations are those of the formulas of torch.utils.flop_counter, for matmuls, convolutions and
attention, and for the operators that compute the same under another name: a fused linear, integer
products, products of groups. Bytes are each operand and the result once.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

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
_NAMESPACE: Final = re.compile(r"^(?:aten|mkl|mkldnn|onednn)::")
_MOST: Final = 1 << 40  # a size of a tensor: a terabyte of bytes
_MOST_DIMS: Final = 8
_MOST_FLOPS: Final = 1 << 62
_DIMS_OF_BATCHES: Final = 3
# The places of the two matrices among the arguments, and how many first arguments are read: an
# ``out`` argument comes after them.
_MATMULS: Final = {
    **dict.fromkeys(("mm", "_int_mm", "bmm", "_grouped_mm"), (0, 1, 2)),
    **dict.fromkeys(("_scaled_mm", "_scaled_grouped_mm"), (0, 1, 4)),
    **dict.fromkeys(("addmm", "_addmm_activation", "baddbmm"), (1, 2, 3)),
}
_LINEARS: Final = {"linear": (0, 1), "_linear_pointwise": (0, 1), "_mkl_linear": (0, 2)}
_CONVOLUTIONS: Final = {  # the places of stride, padding and dilation
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), (3, 4, 5)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (3, 4, 5)),
    **dict.fromkeys((f"conv_transpose{dims}d" for dims in (1, 2, 3)), (3, 4, 7)),
    "_convolution_pointwise": (4, 3, 5),
    "cudnn_convolution": (3, 2, 4),
}
_BY_HEADS: Final = (  # batch, heads, rows, width
    *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_cudnn_attention_forward"),
)
_BY_ROWS: Final = ("_flash_attention_forward", "_efficient_attention_forward")  # rows before heads
_FORMULAS: Final = frozenset({*_MATMULS, *_LINEARS, *_CONVOLUTIONS, *_BY_HEADS, *_BY_ROWS})

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand as the profiler recorded it."""

    sizes: Sizes
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
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    found: list[Tensor | None] = []
    for sizes, name in zip(dims, types, strict=False):
        dtype = _CPP_DTYPES.get(str(name)) or _plain_dtype(str(name))
        is_tensor = dtype is not None and isinstance(sizes, list) and len(sizes) <= _MOST_DIMS
        is_tensor = is_tensor and all(type(each) is int and 0 <= each < _MOST for each in sizes)
        found.append(Tensor(tuple(sizes), str(dtype)) if is_tensor else None)
    return found


def has_formula(operator: HostOperator) -> bool:
    """Return whether the operations of *operator* are known from its shapes."""
    return _NAMESPACE.sub("", operator.name) in _FORMULAS


@functools.cache
def work_of_operator(operator: HostOperator) -> Work | None:
    """Return the work of one call of *operator*; its operations are None where they are not known.

    None where the profiler recorded no shapes. A recorded flop count of a generated kernel counts.
    """
    tensors = tensors_of(operator)
    present = [each for each in tensors if each is not None]
    if not present:
        return None
    name, dtype = _NAMESPACE.sub("", operator.name), present[0].dtype
    if name in _FORMULAS:
        try:
            flops, written = _formula(name, tensors, operator.arguments.get("Concrete Inputs"))
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ):
            flops = written = -1  # other arguments than this formula's: as without a formula
        if 0 <= flops < _MOST_FLOPS and written >= 0:
            operands = tensors[: _MATMULS.get(name, (0, 1, 3))[2]]
            read = sum(each.bytes for each in operands if each is not None)
            return Work(dtype, flops, read + written * item_bytes(dtype))
    recorded = operator.arguments.get("kernel_flop")
    counted = recorded if type(recorded) is int and 0 < recorded < _MOST_FLOPS else None
    return Work(dtype, counted, sum(each.bytes for each in present))


def _formula(name: str, tensors: list[Any], concrete: Any) -> tuple[int, int]:
    """Return the operations of the operator *name*, and the elements that it writes."""
    if name in _MATMULS:
        first, second, _ = _MATMULS[name]
        a, b = tensors[first].sizes, tensors[second].sizes
        if len(a) == len(b) == _DIMS_OF_BATCHES:
            return _counted("bmm", a, b), a[0] * a[1] * b[2]
        # Each row of a, column of b, or step of the sum belongs to one group, whichever it is.
        is_sum = "grouped" in name and len(a) == len(b)
        groups = math.prod(tensors[4 if "scaled" in name else 2].sizes) if is_sum else 1  # offsets
        return _counted("mm", a[-2:], b[-2:]), groups * a[-2] * b[-1]
    if name in _LINEARS:
        first, second = _LINEARS[name]
        (*outer, k), (n, wide) = tensors[first].sizes, tensors[second].sizes
        return _counted("mm", (math.prod(outer), k), (wide, n)), math.prod(outer) * n
    if name in _CONVOLUTIONS:
        return _convolution(name, tensors[0].sizes, tensors[1].sizes, concrete)
    query, key, value = (each.sizes for each in tensors[:3])
    if name in _BY_ROWS:
        query, key, value = ((b, heads, r, w) for b, r, heads, w in (query, key, value))
    batch, heads, rows, _ = query
    key, value = ((batch, heads, *each[2:]) for each in (key, value))  # shared by groups of heads
    flops = _counted("_scaled_dot_product_flash_attention", query, key, value)
    return flops, batch * heads * rows * value[3]


def _convolution(name: str, x: Sizes, w: Sizes, concrete: list[str]) -> tuple[int, int]:
    def spread(place: int) -> Sequence[int]:
        found = msgspec.json.decode(concrete[place], type=int | list[int])
        values = [found] if isinstance(found, int) else found
        return values * (len(x) - 2) if len(values) == 1 else values

    places = _CONVOLUTIONS[name]
    is_transposed = "transpose" in name or (places == (3, 4, 5) and concrete[6:7] == ["True"])
    around = zip(x[2:], w[2:], *map(spread, places), strict=True)
    if is_transposed:
        sizes = [
            (size - 1) * step - 2 * margin + gap * (kernel - 1) + 1
            for size, kernel, step, margin, gap in around
        ]
        out = (x[0], w[1], *sizes)
    else:
        sizes = [
            (size + 2 * margin - gap * (kernel - 1) - 1) // step + 1
            for size, kernel, step, margin, gap in around
        ]
        out = (x[0], w[0], *sizes)
    more = (None, (), (), (), is_transposed)  # bias, stride, padding, dilation: not looked at
    return _counted("convolution", x, w, *more, out=out), math.prod(out)


def _counted(name: str, *arguments: Any, out: Sizes | None = None) -> int:
    """Return the operations of ``aten::name`` by the formula of torch's counter."""
    from torch import ops
    from torch.utils.flop_counter import flop_registry

    return int(flop_registry[getattr(ops.aten, name)](*arguments, out_val=out))


def _plain_dtype(name: str) -> str | None:
    short = dtype_name(name)
    return short if re.fullmatch(r"(?:bf|f|i|u)[0-9]+(?:_\w+)?", short) else None
