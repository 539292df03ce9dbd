"""`GemmProblem`: a GEMM for which inductor chooses a kernel, and its key; row kind ``gemm``.

A key has every ingredient that may change the winner and nothing else (no paths, hosts, device
ordinals, buffer or layer names):

    addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=gelu_tanh
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final, Self, get_args, get_type_hints

from warmup.core.errors import ProblemError
from warmup.core.roofline import Work, item_bytes
from warmup.core.rows import Family
from warmup.keys.kind import Kind, Linear, Problem

NO_EPILOGUE: Final = "none"
# The ops of this kind, by the names that torch/_inductor/kernel and mkldnn_lowerings.py give to
# autotune_select_algorithm: those whose candidates InductorChoices lists, and linears on CPU.
VIA_CHOICES = frozenset({"mm", "addmm", "bmm", "baddbmm", "mm_plus_mm", "int_mm", "scaled_mm"})
CPU_LINEAR = frozenset({"linear_unary", "linear_binary", "packed_linear"})
COVERED = VIA_CHOICES | CPU_LINEAR
_TWO_PRODUCTS: Final = "mm_plus_mm"
_BIAS_ALONG: Final = {"1d": "n", "2d": "mn", "3d": "bmn"}  # the dims along which a bias varies

DIM: Final = r"[0-9]+(?:\.\.[0-9]*)?"
LAYOUT: Final = rf"(?:row|col|packed|any\([0-9.,]+\))(?:/{DIM})?(?:@{DIM})?"
_SCALAR = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
RANGE: Final = re.compile(r"\b\d+\.\.(\d+)\b")
_DYNAMIC: Final = re.compile(r"(?<=[\[,])s(?=[,\]])")  # a dynamic size of an operand in an epilogue
_EPILOGUE = r"[a-zA-Z0-9_.,()\[\]~+\-]+"
_OF_ROWS: Final = frozenset({"batch", "m", "a", "a2"})  # ingredients that depend on them
_TENSOR_SIZES: Final = re.compile(r"\[[^\]]*\]")
_LAST: Final = "epilogue"  # behind a bar, and in every key
_LAYOUT_TEXT: Final = re.compile(
    r"(?P<order>[a-z]+(?:\([0-9.,]+\))?)(?:/(?P<leading>[0-9.]+))?(?:@(?P<batch>[0-9.]+))?"
)
_MAX_DEPTH: Final = 32  # of calls in an epilogue
_NUMBER_TEXT: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf)|nan")
_BARE_WORD: Final = re.compile(r"[a-z][a-z0-9_]*")
_OPERAND: Final = re.compile(
    r"(?P<dtype>[a-z][a-z0-9_]*)\[(?P<sizes>(?:[0-9]+|s)(?:,(?:[0-9]+|s))*)?\]"
)
_NAMED_SCALAR: Final = re.compile(rf"(?P<name>alpha)_(?P<value>{_NUMBER_TEXT.pattern})")


def multiplied_in(ingredients: Mapping[str, str]) -> str:
    """Return the dtype whose peak bounds a product: ``tf32`` for float32 in that precision."""
    return "tf32" if ingredients.get("fp32") == "tf32" else ingredients["dtype"]


def _work(ingredients: Mapping[str, str]) -> Work | None:
    problem = GemmProblem.of(ingredients).at_upper_end()
    dims = (problem.batch or Dim.of(1), problem.m, problem.n, problem.k)
    if not all(dim.is_static for dim in dims) or problem.op not in COVERED:
        return None
    batch, m, n, k = (dim.low for dim in dims)
    products = 2 if problem.op == _TWO_PRODUCTS else 1
    size_b = item_bytes(problem.dtype_b or problem.dtype)
    operands = m * k * item_bytes(problem.dtype) + k * n * size_b
    moved = batch * (products * operands + m * n * item_bytes(problem.out))
    if (bias := _BIAS_ALONG.get(problem.bias or "")) is not None:
        extent = {"b": batch, "m": m, "n": n}
        moved += math.prod(extent[dim] for dim in bias) * item_bytes(problem.dtype)
    return Work(multiplied_in(ingredients), products * 2 * batch * m * n * k, moved)


def _linears_of(key: str) -> tuple[Linear, ...]:
    """Return the linears that ask for *key* where a CPU freezes their weights; often none."""
    # A packed linear of MKL adds its bias apart, so its key does not say whether there is one.
    problem = GemmProblem.of_key(key)
    n, k = problem.n, problem.k
    if problem.op not in CPU_LINEAR or not (n.is_static and k.is_static):
        return ()
    m = problem.m.low if problem.m.is_static else None
    biases = (False, True) if problem.op == "packed_linear" else (problem.bias is not None,)
    return tuple(Linear(m, n.low, k.low, problem.dtype, has_bias) for has_bias in biases)


def _weight_of(key: str) -> str:
    """Leave out rows, batch and the layout of their operand, and sizes of scales and epilogues."""
    # The epilogue stays where a library's call may compute it, on a CPU.
    words = key if key.partition(" ")[0] in CPU_LINEAR else key.partition(" | ")[0]
    kept = (word for word in words.split(" ") if word.partition("=")[0] not in _OF_ROWS)
    return _TENSOR_SIZES.sub("", " ".join(kept))


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
    families=frozenset({Family.TEMPLATE, Family.EXTERN, Family.SUBGRAPH, Family.CPP, Family.BLAS}),
    nearest_by=("m",),
    ranges=("m", "n", "k"),
    hooks="warmup.inductor.gemm.hooks:GemmChoices",
    rebuild="warmup.models.rebuilt:rebuild_gemm",
    sites=frozenset(f"select:{op}" for op in COVERED),
    is_searchable=True,
    question="epilogue",
    brief_format="{op} {n}x{k}",
    work=_work,
    is_product=True,
    linears=_linears_of,
    weight=_weight_of,
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
        return cls(size, size)

    @classmethod
    def read(cls, text: str) -> Dim:
        """Return the size or range that a key spells *text*."""
        low, dots, high = text.partition("..")
        return cls(int(low), int(high) if high else None) if dots else cls.of(int(low))

    @property
    def is_static(self) -> bool:
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

    @classmethod
    def read(cls, text: str) -> Layout:
        """Return the layout that a key spells *text*; a ProblemError where it is none."""
        match = _LAYOUT_TEXT.fullmatch(text)
        if match is None:
            raise ProblemError(f"the layout {text} cannot be read back")
        strides = (match[name] for name in ("leading", "batch"))
        return cls(match["order"], *(None if text is None else Dim.read(text) for text in strides))

    def __str__(self) -> str:
        leading = "" if self.leading is None else f"/{self.leading}"
        batch = "" if self.batch is None else f"@{self.batch}"
        return f"{self.order}{leading}{batch}"


@dataclass(frozen=True, kw_only=True)
class ProductProblem(Problem):
    """A problem about a product of matrices: its fields are the ingredients, in key order.

    A key has the words in `Kind.words`, and all else that differs from the default of its field.
    """

    @classmethod
    def of_key(cls, key: str) -> Self:
        """Return the problem of *key*; a ProblemError where that is no key of this kind."""
        return cls.of(cls.kind.ingredients(key))

    @classmethod
    def of(cls, ingredients: Mapping[str, str]) -> Self:
        """Return the problem with *ingredients*."""
        readers = _readers_of(cls)  # type: ignore[arg-type]  # a class
        return cls(
            **{name: readers[name](text) for name, text in ingredients.items() if name in readers}
        )

    def _spell(self) -> str:
        words = [self.kind.name] if "kind" in self.kind.words else []
        for each in fields(self):
            value = getattr(self, each.name)
            text = format_number(value) if isinstance(value, float) else str(value)
            if each.name in self.kind.words:
                words.append(text)
            elif value != each.default and each.name != _LAST:
                words.append(f"{each.name}={text}")
        return " ".join(words)


@cache
def _readers_of(kind: type[ProductProblem]) -> dict[str, Callable[[str], Any]]:
    """Return what reads the text of each field: ``read`` of its type, or the type itself."""
    hints = get_type_hints(kind)
    types = {each.name: (*get_args(hints[each.name]), hints[each.name])[0] for each in fields(kind)}
    return {name: getattr(each, "read", each) for name, each in types.items()}


@dataclass(frozen=True, kw_only=True)
class GemmProblem(ProductProblem):
    """A GEMM for which inductor chooses a kernel.

    Sizes are in elements. Ingredients are None when they do not apply; ``dtype_b`` is there where
    it is not ``dtype``. ``scale`` is the text form of the scales of a scaled GEMM, that of a and
    that of b, each a dtype and sizes; ``accum`` is ``fast`` for its less precise accumulation, and
    ``reduction`` is ``full`` where partial sums have full precision.
    """

    kind = GEMM

    op: str
    batch: Dim | None = None
    m: Dim
    n: Dim
    k: Dim
    dtype: str
    dtype_b: str | None = None
    a: Layout
    b: Layout
    a2: Layout | None = None
    b2: Layout | None = None
    bias: str | None = None
    scale: str | None = None
    accum: str | None = None
    alpha: float = 1
    beta: float = 1
    out: str
    fp32: str | None = None
    reduction: str | None = None
    epilogue: str = NO_EPILOGUE

    def at_upper_end(self) -> GemmProblem:
        """Return this problem with its range replaced by the upper end of the range.

        A dynamic size in the epilogue is replaced too. A problem with ranges of different ends, or
        without an end, is returned unchanged.
        """
        found = set(RANGE.findall(self.key))
        if len(found) != 1:
            return self
        (end,) = found
        return self.of_key(_DYNAMIC.sub(end, RANGE.sub(end, self.key)))

    def _spell(self) -> str:
        if self.dtype_b == self.dtype:
            return replace(self, dtype_b=None).key
        return f"{super()._spell()} | epilogue={self.epilogue}"


def at_upper_end(key: str) -> str:
    """Return the key of `GemmProblem.at_upper_end`; keys of other kinds are returned unchanged."""
    if ".." not in key or GEMM.pattern.fullmatch(key) is None:
        return key
    return GemmProblem.of_key(key).at_upper_end().key


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

    *is_equal* compares two sizes without adding a guard, and *to_dim* returns a stride as a `Dim`.
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
    """Return the form of a bias of a result of *dims* dims, ``1d``, ``2d`` and so on.

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
    return isinstance(size, int) and size == number


# Epilogues as expressions: ``mul(sin(x),x),add(bf16[560,1280]),to(f32)`` has three steps, each a
# call. A step that does not name its input ``x`` takes it as its first argument.


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an epilogue reads beside the GEMM's result; a dynamic size is None."""

    dtype: str
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word: ``x`` (the result of the step before), ``none`` or a dtype."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operation on expressions; ``named`` has its scalar keyword arguments."""

    name: str
    arguments: tuple[Expression, ...]
    named: tuple[tuple[str, float], ...] = ()


Expression = Call | Operand | Word | int | float
INPUT: Final = Word("x")


def parse_epilogue(text: str) -> tuple[Call, ...]:
    """Return the steps of the epilogue *text*, each with its input ``x``; empty for ``none``.

    A ProblemError: a step is a hash or another text that cannot be parsed.
    """
    if text == NO_EPILOGUE:
        return ()
    return tuple(_step(part) for part in split_arguments(text))


def operands_of(expression: Expression) -> tuple[Operand, ...]:
    """Return the operands in *expression*, from left to right."""
    if isinstance(expression, Operand):
        return (expression,)
    if isinstance(expression, Call):
        return tuple(operand for part in expression.arguments for operand in operands_of(part))
    return ()


def _step(text: str) -> Call:
    expression = _expression(text, 0)
    if isinstance(expression, Word):
        return Call(expression.text, (INPUT,))
    if not isinstance(expression, Call):
        raise ProblemError(f"the epilogue step {text} is no operation")
    if _reads_input(expression):
        return expression
    return Call(expression.name, (INPUT, *expression.arguments), expression.named)


def _reads_input(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return any(_reads_input(part) for part in expression.arguments)
    return expression == INPUT


def _expression(text: str, depth: int) -> Expression:
    if depth > _MAX_DEPTH:
        raise ProblemError("the epilogue is nested too deeply")
    if _NUMBER_TEXT.fullmatch(text):
        return int(text) if text.lstrip("-").isdigit() else float(text)
    if _BARE_WORD.fullmatch(text):
        return Word(text)
    operand = _OPERAND.fullmatch(text)
    if operand is not None:
        sizes = operand["sizes"].split(",") if operand["sizes"] else []
        return Operand(operand["dtype"], tuple(None if s == "s" else int(s) for s in sizes))
    name, bracket, rest = text.partition("(")
    if not bracket or not rest.endswith(")") or _BARE_WORD.fullmatch(name) is None:
        raise ProblemError(f"the epilogue has {text[:80]}, which cannot be read back")
    parts = split_arguments(rest[:-1])
    scalars = [_NAMED_SCALAR.fullmatch(part) for part in parts]
    named = tuple((scalar["name"], float(scalar["value"])) for scalar in scalars if scalar)
    positional = [part for part, scalar in zip(parts, scalars, strict=True) if not scalar]
    return Call(name, tuple(_expression(part, depth + 1) for part in positional), named)


def split_arguments(text: str) -> list[str]:
    """Return the parts of *text* between commas that are outside of any bracket."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]
