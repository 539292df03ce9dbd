"""GEMM problems in words: what inductor asks about, spelled for people. Floor 0: stdlib only.

A key names every ingredient that may change the winner and nothing else (no paths, hosts, device
ordinals, buffer or layer names):

    addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=gelu_tanh
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from warmup.errors import ProblemError

NO_EPILOGUE = "none"
# Names that torch/_inductor/kernel and mkldnn_lowerings.py give to autotune_select_algorithm.
VIA_CHOICES = frozenset({"mm", "addmm", "bmm", "baddbmm", "mm_plus_mm"})
CPU_LINEAR = frozenset({"linear_unary", "linear_binary", "packed_linear"})
COVERED = VIA_CHOICES | CPU_LINEAR

_DIM = r"[0-9]+(?:\.\.[0-9]*)?"
_LAYOUT = rf"(?:row|col|packed|any\([0-9.,]+\))(?:/{_DIM})?(?:@{_DIM})?"
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_EPILOGUE = r"[a-zA-Z0-9_.,()\[\]~+\-]+"
_KEY = re.compile(
    rf"(?P<op>[a-z][a-z0-9_]*)(?: batch={_DIM})? m={_DIM} n={_DIM} k={_DIM} [a-z][a-z0-9_]*"
    rf"(?: dtype_b=[a-z0-9_]+)? a={_LAYOUT} b={_LAYOUT}(?: a2={_LAYOUT})?(?: b2={_LAYOUT})?"
    rf"(?: bias=[a-z0-9]+)?(?: alpha={_NUMBER})?(?: beta={_NUMBER})? out=[a-z][a-z0-9_]*"
    rf"(?: fp32=[a-z0-9]+)?(?: reduction=full)? \| epilogue={_EPILOGUE}"
)
MAX_KEY_LENGTH = 2048


@dataclass(frozen=True, slots=True)
class Dim:
    """One size: a constant (``low == high``) or the inclusive range of a dynamic dim.

    ``high`` is None when the range has no upper end.
    """

    low: int
    high: int | None

    @classmethod
    def of(cls, size: int) -> Dim:
        """Return the constant dim *size*."""
        return cls(size, size)

    @property
    def is_static(self) -> bool:
        """Whether this is a constant."""
        return self.low == self.high

    def __str__(self) -> str:
        if self.is_static:
            return str(self.low)
        return f"{self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True, slots=True)
class Layout:
    """How one operand lies in memory.

    ``order`` is ``row``, ``col``, ``packed`` or ``any(s0,s1)``; ``leading`` (elements between rows
    or columns) and ``batch`` (elements between matrices) are None when they are the natural ones.
    """

    order: str
    leading: Dim | None = None
    batch: Dim | None = None

    def __str__(self) -> str:
        leading = "" if self.leading is None else f"/{self.leading}"
        batch = "" if self.batch is None else f"@{self.batch}"
        return f"{self.order}{leading}{batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """One question that inductor asks: which kernel computes this GEMM?

    Sizes are in elements. Optional ingredients are None when they do not apply; ``alpha`` and
    ``beta`` are 1 when absent from the key.
    """

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
    alpha: float = 1
    beta: float = 1
    fp32: str | None = None
    full_reduction: bool = False
    epilogue: str = NO_EPILOGUE

    @property
    def key(self) -> str:
        """The canonical text of this problem.

        Raises:
            ProblemError: an ingredient cannot be spelled in a key.
        """
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
        words += [f"alpha={spell_number(self.alpha)}"] if self.alpha != 1 else []
        words += [f"beta={spell_number(self.beta)}"] if self.beta != 1 else []
        words.append(f"out={self.out}")
        words += [f"fp32={self.fp32}"] if self.fp32 is not None else []
        words += ["reduction=full"] if self.full_reduction else []
        key = f"{' '.join(words)} | epilogue={self.epilogue}"
        check_key(key)
        return key


def spell_number(value: float) -> str:
    """Return *value* as keys spell it: integers without a point, floats to six digits."""
    if isinstance(value, bool):
        return str(int(value))
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


def check_key(key: str) -> None:
    """Return when *key* is a GEMM key as `GemmProblem.key` spells it.

    Raises:
        ProblemError: it is not.
    """
    if len(key) > MAX_KEY_LENGTH or _KEY.fullmatch(key) is None:
        raise ProblemError(f"not a GEMM key: {key[:120]!r}")


def ingredients_of(key: str) -> dict[str, str]:
    """Return the named ingredients of a GEMM key, in key order.

    Raises:
        ProblemError: *key* is not a GEMM key.
    """
    check_key(key)
    problem, epilogue = key.split(" | epilogue=")
    words = problem.split(" ")
    named = {"op": words[0]}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            named[name] = value
        else:
            named["dtype"] = name
    named["epilogue"] = epilogue
    return named


def differing(row: dict[str, str], asked: dict[str, str]) -> tuple[str, ...]:
    """Return ``name: row X, here Y`` for each ingredient in which two problems differ."""
    names = [*asked, *(name for name in row if name not in asked)]
    return tuple(
        f"{name}: row {row.get(name, 'absent')}, here {asked.get(name, 'absent')}"
        for name in names
        if row.get(name) != asked.get(name)
    )


def nearest(key: str, rows: Iterable[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the row of the same op with the fewest differing ingredients, and what differs.

    Ties go to the numerically closest m, then to key order, so that the answer is the same in
    every process. Returns ``(None, ())`` when no row has the op of *key*.
    """
    asked = ingredients_of(key)
    op = asked["op"] + " "
    best: tuple[tuple[int, int, str], str, tuple[str, ...]] | None = None
    for row in rows:
        if not row.startswith(op):
            continue
        found = ingredients_of(row)
        differs = differing(found, asked)
        rank = (len(differs), abs(_low(found["m"]) - _low(asked["m"])), row)
        if best is None or rank < best[0]:
            best = (rank, row, differs)
    return (None, ()) if best is None else (best[1], best[2])


def natural_order(key: str) -> tuple[str | tuple[int, str], ...]:
    """Return a sort key that puts ``m=16`` before ``m=128``, for any text."""
    parts = re.split(r"0*([0-9]+)", key)  # text and digits in turn
    return tuple((len(part), part) if i % 2 else part for i, part in enumerate(parts))


def _low(dim: str) -> int:
    return int(dim.partition("..")[0])
