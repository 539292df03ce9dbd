"""`work_of_operator`: operations and bytes of one call, from the shapes that the profiler recorded.

Operations are multiplications and additions of matmuls, convolutions and attention, the same that
torch.utils.flop_counter counts, and those of products of groups, which it counts as none. Bytes are
each operand and the result once.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmup.core.dtypes import dtype_name, item_bytes
from warmup.core.roofline import Work
from warmup.diagnostics.profile.operator_formulas import (
    FORMULAS,
    MATRIX,
    OPERANDS_READ,
    are_sizes,
)
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
TEMPLATE_PREFIX: Final = "triton_tem_"  # of the kernels of inductor's GEMM templates
_OVERLOAD: Final = re.compile(r"^(?:aten|mkl|mkldnn|onednn)::")


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
        is_tensor = dtype is not None and all(
            isinstance(each, list) and are_sizes(each) for each in (sizes, step)
        )
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
    formula = FORMULAS.get(name)
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


def has_formula(operator: HostOperator) -> bool:
    """Return whether the operations of *operator* are known from its shapes."""
    return _OVERLOAD.sub("", operator.name) in FORMULAS


def _operands(name: str, tensors: list[Tensor | None]) -> list[Tensor]:
    return [each for each in tensors[: OPERANDS_READ.get(name, 3)] if each is not None]


def _dtype(tensors: list[Tensor | None]) -> str:
    return next(each.dtype for each in tensors if each is not None)


def _concrete(operator: HostOperator) -> list[Any]:
    given = operator.arguments.get("Concrete Inputs")
    return [_literal(each) for each in given] if isinstance(given, list) else []


def _literal(text: Any) -> Any:
    try:
        return ast.literal_eval(str(text))
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return text


def _plain_dtype(name: str) -> str | None:
    short = dtype_name(name)
    return short if re.fullmatch(r"(?:bf|f|i|u)[0-9]+(?:_\w+)?", short) else None


def _template_flops(name: str, tensors: Sequence[Tensor]) -> int | None:
    """Return the operations of a template's kernel, whose arguments have no order of their own.

    Three of its tensors have the sizes m k, k n and m n, in any order and transposed or not. None
    where no three have, or where several three give different operations. Of a product of groups
    the tensors that have a group's number too count as if they had one group, but where all three
    have it.
    """
    is_grouped = "grouped_mm" in name
    matrices = [each for each in tensors if len(each.sizes) >= MATRIX]
    is_batched = "bmm" in name or (is_grouped and all(len(m.sizes) > MATRIX for m in matrices))
    sizes = set()
    for each in matrices:
        *outer, rows, columns = each.sizes
        batch = math.prod(outer) if is_batched else 1
        rows = rows if is_batched or is_grouped else rows * math.prod(outer)
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
