"""`PadSizes`: what a pad decision is predicted from, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from warmup.core.dtypes import item_bytes
from warmup.core.errors import ProblemError
from warmup.keys.pad import PadProblem
from warmup.keys.pad_text import parse_padding
from warmup.keys.weight import ALIGNED_BYTES
from warmup.prediction.pad.estimate import GemmRates, GemmWays

# Sizes, bytes and rates are binary logarithms; an alignment is that of the bytes of which a size is
# a multiple, 16 at most. `a_alignment` is that of the dim along which the first operand lies.
# `estimated_gain` is what padding should gain by what limits either way, at the rates of a device.
PAD_FEATURES: Final = (
    *("m", "n", "k", "area", "operations", "intensity", "item_bytes", "tf32"),
    *("m_alignment", "n_alignment", "k_alignment", "a_alignment", "b_alignment"),
    *("a_transposed", "b_transposed", "a_free", "b_free"),
    *("added_operations", "copied_per_operation", "estimated_gain"),
)
_COPIES_NOTHING: Final = -64.0  # the logarithm that stands for no copied element
_ALIGNED_LOG: Final = int(math.log2(ALIGNED_BYTES))


@dataclass(frozen=True, slots=True)
class PadSizes:
    """A GEMM of constant sizes that may be padded.

    ``category`` is all but sizes, layouts and free operands: op, dtype and float32 precision.
    ``values`` are the features that no device changes, and ``ways`` what the last is made from.
    """

    m: int
    n: int
    k: int
    category: str
    values: tuple[float, ...]
    ways: GemmWays

    def features(self, rates: GemmRates) -> tuple[float, ...]:
        """Return the values of `PAD_FEATURES` on a device of such *rates*."""
        return (*self.values, self.ways.estimate_gain(rates))

    @property
    def text(self) -> str:
        """The three sizes, which samples of several dtypes and layouts may share."""
        return f"{self.m} {self.n} {self.k}"


def pad_sizes_of(key: str) -> PadSizes | None:
    """Return the sizes of the pad key *key*; None where nothing is predicted.

    None for ranges, batches, a bias, layouts that are neither rows nor columns, and other keys.
    """
    try:
        problem = parse_padding(key)
    except ProblemError:
        return None
    dims = (problem.m, problem.n, problem.k)
    if problem.batch is not None or problem.bias is not None:
        return None
    if not all(dim.is_static and dim.low > 0 for dim in dims):
        return None
    if not all(str(layout) in {"row", "col"} for layout in (problem.a, problem.b)):
        return None
    m, n, k = (dim.low for dim in dims)
    words = (problem.op, problem.dtype, *([problem.fp32] if problem.fp32 is not None else []))
    values, ways = _measures(problem, m, n, k)
    return PadSizes(m, n, k, " ".join(words), values, ways)


def _measures(problem: PadProblem, m: int, n: int, k: int) -> tuple[tuple[float, ...], GemmWays]:
    size = item_bytes(problem.dtype)
    unit = ALIGNED_BYTES // size
    padded_m, padded_n, padded_k = (_padded(each, unit) for each in (m, n, k))
    a_is_row, b_is_row = str(problem.a) == "row", str(problem.b) == "row"
    operations = m * n * k
    a_alignment = _alignment((k if a_is_row else m) * size)
    b_alignment = _alignment((n if b_is_row else k) * size)
    ways = GemmWays(
        dims=(m, n, k),
        padded=(padded_m, padded_n, padded_k),
        item_bytes=size,
        is_tf32=problem.fp32 == "tf32",
        alignment=int(min(a_alignment, b_alignment)),
        is_free=("a" in problem.free, "b" in problem.free),
    )
    copied = m * n if (m, n) != (padded_m, padded_n) else 0
    copied += sum(before for before, _ in ways.copied_operands)
    values = (
        math.log2(m),
        math.log2(n),
        math.log2(k),
        math.log2(m * n),
        math.log2(operations),
        math.log2(operations / (m * k + k * n + m * n)),
        float(size),
        float(problem.fp32 == "tf32"),
        _alignment(m * size),
        _alignment(n * size),
        _alignment(k * size),
        a_alignment,
        b_alignment,
        float(not a_is_row),
        float(not b_is_row),
        float("a" in problem.free),
        float("b" in problem.free),
        math.log2(padded_m * padded_n * padded_k / operations),
        math.log2(copied / operations) if copied else _COPIES_NOTHING,
    )
    return values, ways


def _padded(size: int, unit: int) -> int:
    """Return *size* as inductor pads it: a size of 1 stays."""
    return size if size == 1 else -(-size // unit) * unit


def _alignment(size_bytes: int) -> float:
    """Return the binary logarithm of the largest power of two of which *size_bytes* is a multiple.

    At most that of 16.
    """
    return float(min((size_bytes & -size_bytes).bit_length() - 1, _ALIGNED_LOG))
