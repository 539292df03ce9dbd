"""`OperandShape`, and `key_of`: the key of a GEMM from the sizes and strides of its operands.

What other tools do not note has its usual value in the key: no epilogue, reductions in reduced
precision as torch allows them, a result of the dtype of the operands, an alpha and a beta of 1, and
f32 products in full precision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ProblemError
from warmup.core.rows import MAX_INT
from warmup.keys.gemm import Dim, GemmProblem, Layout
from warmup.keys.strides import bias_form, layout_of

ASSUMED: Final = (
    "assumed, since these files do not say it: no epilogue, a result of the operands' dtype, "
    "reductions of f16 and bf16 in reduced precision, torch's default; in logs an alpha and a beta "
    "of 1; in logs and lookup tables f32 products in full precision, unless a template was allowed "
    "tf32"
)
# alpha and beta as Python spells them: 1 / sqrt(128) has 17 digits.
SCALAR_TEXT: Final = r"-?[0-9]{1,9}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?"
_OPERANDS: Final = {"mm": 2, "bmm": 2, "int_mm": 2, "addmm": 3, "baddbmm": 3, "mm_plus_mm": 4}
_NOT_SAID: Final = {
    "convolution": "the entry has neither the strides nor the padding of the convolution",
    "scaled_mm": "the entry does not say the dtype of the result",
    "linear_binary": "the entry does not say what is done with the second operand",
}
_FACTOR_DIMS: Final = 2
_BATCHED_DIMS: Final = 3
_MAX_OPERANDS: Final = 8
_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class OperandShape:
    """An operand: its short dtype name, sizes and strides, in elements."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, dtype: str, sizes: Sequence[int], strides: Sequence[int]) -> OperandShape:
        """Return the operand with torch's *dtype* name, such as ``torch.bfloat16``.

        Raises:
            ProblemError: the dtype is no name, or a number is no size.
        """
        name = dtype_name(dtype)
        if _WORD.fullmatch(name) is None:
            raise ProblemError(f"{dtype[:40]!r} is no dtype")
        if len(sizes) != len(strides):
            raise ProblemError("an operand has other strides than sizes")
        if any(not 0 <= number <= MAX_INT for number in (*sizes, *strides)):
            raise ProblemError(f"a size or stride is no number from 0 to {MAX_INT}")
        return cls(name, tuple(sizes), tuple(strides))

    @property
    def layout(self) -> Layout:
        """The layout of this matrix or batch of matrices."""
        return layout_of(list(self.sizes), list(self.strides), int.__eq__, Dim.of)


def key_of(
    op: str,
    operands: Sequence[OperandShape],
    *,
    precision: str = "ieee",
    alpha: float = 1,
    beta: float = 1,
) -> str:
    """Return the key of the GEMM *op* of *operands*, in the order in which inductor names them.

    *precision* is that of float32 products.

    Raises:
        ProblemError: no row answers *op*, or the operands are not those of such a GEMM.
    """
    if len(operands) > _MAX_OPERANDS:
        raise ProblemError(f"{len(operands)} operands are more than a GEMM has")
    if op in ("packed_linear", "linear_unary"):
        problem = _linear(op, operands, precision)
    elif op in _OPERANDS:
        problem = _product(op, operands, precision, alpha, beta)
    else:
        raise ProblemError(_NOT_SAID.get(op, f"no row answers the op {op[:40]}"))
    return problem.key


def _product(
    op: str, operands: Sequence[OperandShape], precision: str, alpha: float, beta: float
) -> GemmProblem:
    if len(operands) != _OPERANDS[op]:
        raise ProblemError(f"{op} has {_OPERANDS[op]} operands, the entry {len(operands)}")
    with_bias = op in ("addmm", "baddbmm")
    a, b = operands[1:] if with_bias else operands[:2]
    dims = _BATCHED_DIMS if op in ("bmm", "baddbmm") else _FACTOR_DIMS
    if any(len(each.sizes) != dims for each in (a, b)):
        raise ProblemError(f"a factor of {op} has {dims} dims, the entry another number")
    (m, k), n = a.sizes[-2:], b.sizes[-1]
    if b.sizes[-2] != k or a.sizes[:-2] != b.sizes[:-2] or a.dtype != b.dtype:
        raise ProblemError("the two factors do not fit together")
    pair = operands[2:] if op == "mm_plus_mm" else ()
    if any(one.sizes != other.sizes for one, other in zip((a, b), pair, strict=False)):
        raise ProblemError("the two products have other sizes")
    return GemmProblem(
        op=op,
        batch=Dim.of(a.sizes[0]) if dims == _BATCHED_DIMS else None,
        m=Dim.of(m),
        n=Dim.of(n),
        k=Dim.of(k),
        dtype=a.dtype,
        a=a.layout,
        b=b.layout,
        a2=pair[0].layout if pair else None,
        b2=pair[1].layout if pair else None,
        bias=bias_form(dims, operands[0].sizes, operands[0].strides) if with_bias else None,
        out="i32" if op == "int_mm" else a.dtype,
        alpha=alpha,
        beta=beta,
        fp32=precision if a.dtype == "f32" else None,
    )


def _linear(op: str, operands: Sequence[OperandShape], precision: str) -> GemmProblem:
    """Return the problem of a linear on a CPU, whose weight has one of the two last places."""
    is_packed = op == "packed_linear"
    place = 2 if is_packed else 1
    if not place < len(operands) <= place + 2:
        raise ProblemError(f"{op} has other operands than the entry")
    x, weight = operands[0], operands[place]
    if len(x.sizes) != _FACTOR_DIMS or len(weight.sizes) != _FACTOR_DIMS:
        raise ProblemError(f"an operand of {op} is no matrix")
    (m, k), (n, weight_k) = x.sizes, weight.sizes
    if weight_k != k:
        raise ProblemError("the input and the weight do not fit together")
    return GemmProblem(
        op=op,
        m=Dim.of(m),
        n=Dim.of(n),
        k=Dim.of(k),
        dtype=x.dtype,
        a=x.layout,
        b=Layout("packed"),
        bias="1d" if not is_packed and len(operands) == place + 2 else None,
        out=x.dtype,
        fp32=precision if x.dtype == "f32" else None,
    )
