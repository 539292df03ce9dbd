"""`GemmProblem`: a GEMM for which inductor chooses a kernel, and its key; row kind ``gemm``.

A key has every ingredient that may change the winner and nothing else (no paths, hosts, device
ordinals, buffer or layer names):

    addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=gelu_tanh
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from warmup.core.rows import Family
from warmup.keys.kind import Kind, Problem

NO_EPILOGUE: Final = "none"
# The ops of this kind, by the names that torch/_inductor/kernel and mkldnn_lowerings.py give to
# autotune_select_algorithm: those whose candidates InductorChoices lists, and linears on CPU.
VIA_CHOICES = frozenset({"mm", "addmm", "bmm", "baddbmm", "mm_plus_mm", "int_mm", "scaled_mm"})
CPU_LINEAR = frozenset({"linear_unary", "linear_binary", "packed_linear"})
COVERED = VIA_CHOICES | CPU_LINEAR

DIM: Final = r"[0-9]+(?:\.\.[0-9]*)?"
LAYOUT: Final = rf"(?:row|col|packed|any\([0-9.,]+\))(?:/{DIM})?(?:@{DIM})?"
_SCALAR = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_RANGE: Final = re.compile(r"\b\d+\.\.(\d+)\b")
_DYNAMIC: Final = re.compile(r"(?<=[\[,])s(?=[,\]])")  # a dynamic size of an operand in an epilogue
_EPILOGUE = r"[a-zA-Z0-9_.,()\[\]~+\-]+"
GEMM: Final = Kind(
    name="gemm",
    pattern=re.compile(
        rf"(?P<op>[a-z][a-z0-9_]*)(?: batch={DIM})? m={DIM} n={DIM} k={DIM} [a-z][a-z0-9_]*"
        rf"(?: dtype_b=[a-z0-9_]+)? a={LAYOUT} b={LAYOUT}(?: a2={LAYOUT})?(?: b2={LAYOUT})?"
        rf"(?: bias=[a-z0-9]+)?(?: scale=[a-z0-9_.,:\[\]]+)?(?: accum=fast)?"
        rf"(?: alpha={_SCALAR})?(?: beta={_SCALAR})? out=[a-z][a-z0-9_]*"
        rf"(?: fp32=[a-z0-9]+)?(?: reduction=full)? \| epilogue={_EPILOGUE}"
    ),
    words=("op", "dtype"),
    fixed=1,
    families=frozenset({Family.TEMPLATE, Family.EXTERN, Family.SUBGRAPH, Family.CPP}),
    nearest_by=("m",),
    ranges=("m", "n", "k"),
    hooks="warmup.inductor.gemm.hooks:GemmChoices",
    rebuild="warmup.models.rebuilt:rebuild_gemm",
    sites=frozenset(f"select:{op}" for op in COVERED),
    is_searchable=True,
    question="epilogue",
    brief_format="{op} {n}x{k}",
    work="warmup.keys.work:gemm_work",
    product="warmup.keys.work:product_of",
    linears="warmup.keys.text:linears_of",
)


@dataclass(frozen=True, slots=True)
class Dim:
    """A size: a constant (``low == high``) or the inclusive range of a dynamic dim.

    ``high`` is None when the range has no upper end.
    """

    low: int
    high: int | None

    @classmethod
    def of(cls, size: int) -> Dim:
        """Return the dim of the constant *size*."""
        return cls(size, size)

    @property
    def is_static(self) -> bool:
        """Whether this is a constant size."""
        return self.low == self.high

    def __str__(self) -> str:
        if self.is_static:
            return str(self.low)
        return f"{self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True, slots=True)
class Layout:
    """How an operand is stored in memory.

    ``order`` is ``row``, ``col``, ``packed`` or ``any(s0,s1)``. ``leading`` (elements between rows
    or columns) and ``batch`` (elements between matrices) are None for an operand without gaps.
    """

    order: str
    leading: Dim | None = None
    batch: Dim | None = None

    def __str__(self) -> str:
        leading = "" if self.leading is None else f"/{self.leading}"
        batch = "" if self.batch is None else f"@{self.batch}"
        return f"{self.order}{leading}{batch}"


@dataclass(frozen=True, kw_only=True)
class GemmProblem(Problem):
    """A GEMM for which inductor chooses a kernel.

    Sizes are in elements. Optional ingredients are None when they do not apply; ``alpha`` and
    ``beta`` are 1 when absent from the key. ``scale`` is the text form of the scales of a scaled
    GEMM, that of a and that of b, each a dtype and sizes; ``fast_accum`` is its less precise
    accumulation.
    """

    kind = GEMM

    op: str
    m: Dim
    n: Dim
    k: Dim
    dtype: str
    a: Layout
    b: Layout
    out: str
    batch: Dim | None = None
    dtype_b: str | None = None
    a2: Layout | None = None
    b2: Layout | None = None
    bias: str | None = None
    scale: str | None = None
    fast_accum: bool = False
    alpha: float = 1
    beta: float = 1
    fp32: str | None = None
    full_reduction: bool = False
    epilogue: str = NO_EPILOGUE

    @property
    def without_epilogue(self) -> GemmProblem:
        """The same GEMM with the epilogue ``none``."""
        return replace(self, epilogue=NO_EPILOGUE)

    def at_upper_end(self) -> GemmProblem:
        """Return this problem with its range replaced by the upper end of the range.

        A dynamic size in the epilogue is replaced too. A problem with ranges of different ends, or
        without an end, is returned unchanged.
        """
        texts = f"{self.scale} {self.epilogue}"
        ends = {dim.high for dim in self._dims() if not dim.is_static and dim.high is not None}
        ends |= set(map(int, _RANGE.findall(texts)))
        if len(ends) != 1:
            return self
        (end,) = ends

        def fix_dim(dim: Dim | None) -> Dim | None:
            return dim if dim is None or dim.high is None else Dim.of(dim.high)

        def fix_layout(layout: Layout | None) -> Layout | None:
            if layout is None:
                return None
            return Layout(layout.order, fix_dim(layout.leading), fix_dim(layout.batch))

        def fix_text(text: str) -> str:
            return _DYNAMIC.sub(str(end), _RANGE.sub(str(end), text))

        dims = {name: fix_dim(getattr(self, name)) for name in ("batch", "m", "n", "k")}
        layouts = {name: fix_layout(getattr(self, name)) for name in ("a", "b", "a2", "b2")}
        scale = None if self.scale is None else fix_text(self.scale)
        changes: dict[str, Any] = {**dims, **layouts, "scale": scale}
        return replace(self, **changes, epilogue=fix_text(self.epilogue))

    def _dims(self) -> Iterator[Dim]:
        """Yield every size and stride of this problem."""
        layouts = (self.a, self.b, self.a2, self.b2)
        strides = ((layout.leading, layout.batch) for layout in layouts if layout is not None)
        dims = (self.batch, self.m, self.n, self.k, *itertools.chain(*strides))
        yield from (dim for dim in dims if dim is not None)

    def _spell(self) -> str:
        words = [self.op]
        if self.batch is not None:
            words.append(f"batch={self.batch}")
        words += [f"m={self.m}", f"n={self.n}", f"k={self.k}", self.dtype]
        if self.dtype_b is not None and self.dtype_b != self.dtype:
            words.append(f"dtype_b={self.dtype_b}")
        words += [f"a={self.a}", f"b={self.b}"]
        words += [f"a2={self.a2}"] if self.a2 is not None else []
        words += [f"b2={self.b2}"] if self.b2 is not None else []
        words += [f"bias={self.bias}"] if self.bias is not None else []
        words += [f"scale={self.scale}"] if self.scale is not None else []
        words += ["accum=fast"] if self.fast_accum else []
        words += [f"alpha={format_number(self.alpha)}"] if self.alpha != 1 else []
        words += [f"beta={format_number(self.beta)}"] if self.beta != 1 else []
        words.append(f"out={self.out}")
        words += [f"fp32={self.fp32}"] if self.fp32 is not None else []
        words += ["reduction=full"] if self.full_reduction else []
        return f"{' '.join(words)} | epilogue={self.epilogue}"


def format_number(value: float) -> str:
    """Return *value* as it is written in keys: integers without a point, floats to six digits."""
    if isinstance(value, bool):
        return str(int(value))
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


# `layout_of` and `bias_form`: how keys spell operands, from their sizes and strides.

_TWO_DIMS: Final = 2  # dims


def layout_of(
    sizes: list[Any],
    strides: list[Any],
    is_equal: Callable[[Any, Any], bool],
    to_dim: Callable[[Any], Dim],
) -> Layout:
    """Return the layout of a matrix or batch of matrices; strides of dims of size 1 are ignored.

    *is_equal* returns whether two sizes are known to be equal, without adding a guard. *to_dim*
    returns a stride as a `Dim`.
    """
    rows, cols = sizes[-2:]
    row_stride, col_stride = strides[-2:]
    if is_equal(col_stride, 1) or is_equal(cols, 1):
        is_column = is_equal(cols, 1) and is_equal(row_stride, 1)
        natural = is_equal(rows, 1) or is_equal(row_stride, cols) or is_column
        order, leading = "row", None if natural else to_dim(row_stride)
    elif is_equal(row_stride, 1) or is_equal(rows, 1):
        order, leading = "col", None if is_equal(col_stride, rows) else to_dim(col_stride)
    else:
        order, leading = f"any({to_dim(row_stride)},{to_dim(col_stride)})", None
    batch = None
    if len(sizes) > _TWO_DIMS and not is_equal(sizes[0], 1):
        batch = None if is_equal(strides[0], rows * cols) else to_dim(strides[0])
    return Layout(order, leading, batch)


def bias_form(dims: int, sizes: Sequence[Any], strides: Sequence[Any]) -> str:
    """Return the form of a bias that is added to a result of *dims* dims: ``1d``, ``2d`` and so on.

    Dims of size 1 and of stride 0 do not count.
    """
    letters = "bmn"[-dims:]
    own_dims = [
        letter
        for letter, size, stride in zip(
            reversed(letters), reversed(sizes), reversed(strides), strict=False
        )
        if not _is(size, 1) and not _is(stride, 0)
    ]
    form = "".join(reversed(own_dims))
    return {"": "scalar", "n": "1d", "mn": "2d", "bmn": "3d"}.get(form, form)


def _is(size: Any, number: int) -> bool:
    """Whether *size*, which may be symbolic, is the constant *number*."""
    return isinstance(size, int) and size == number
