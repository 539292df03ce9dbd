"""`GemmSizes` and `CandidateConfig`: what a time is predicted from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from warmup.core.dtypes import item_bytes
from warmup.core.rows import Family, Winner
from warmup.keys.gemm import Dim, GemmProblem, Layout

PREDICTED_OPS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm"})
LIBRARY_UID: Final = "library"
CONFIG_KWARGS: Final = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps")
_RATES: Final = {"f16": "bf16"}
_WIDEST_LOAD_BYTES: Final = 16  # of the widest load
_UNALIGNED, _OUT_UNALIGNED = "unaligned", "out-unaligned"


@dataclass(frozen=True, slots=True)
class GemmSizes:
    """A GEMM of constant sizes. ``category`` is all but the sizes: op, dtypes, layouts, bias.

    ``rate`` names the dtypes whose kernels are equally fast, and which share constants: f16 counts
    as bf16, and f32 apart from f32 that is multiplied as tf32. It is the category's first word.

    ``is_aligned`` says whether the rows (or columns) of both factors start at multiples of 16
    bytes, ``is_out_aligned`` whether those of the result do: a library has few kernels for others.
    Both are a part of the category.
    """

    batch: int
    m: int
    n: int
    k: int
    rate: str
    item_bytes: int
    out_bytes: int
    category: str
    is_aligned: bool
    is_out_aligned: bool = True

    @property
    def logs(self) -> tuple[float, float, float, float]:
        """The binary logarithms of batch, m, n and k."""
        return math.log2(self.batch), math.log2(self.m), math.log2(self.n), math.log2(self.k)


@dataclass(frozen=True, slots=True)
class CandidateConfig:
    """The tuning kwargs of a candidate; the library's kernel has no blocks.

    ``split`` is into how many parts K is split, 1 for most.
    """

    uid: str
    block_m: int = 0
    block_n: int = 0
    block_k: int = 0
    group_m: int = 0
    stages: int = 0
    warps: int = 0
    split: int = 1

    @property
    def is_library(self) -> bool:
        """Whether this is the library's kernel."""
        return self.uid == LIBRARY_UID

    @property
    def is_persistent(self) -> bool:
        """Whether the template launches as many blocks as the device has multiprocessors."""
        return "persistent" in self.uid


LIBRARY_CONFIG: Final = CandidateConfig(LIBRARY_UID)


def sizes_of(problem: GemmProblem) -> GemmSizes | None:
    """Return the sizes of *problem*, at the upper end of a range; None where no time is predicted.

    None for other ops, layouts that are neither rows nor columns, scales, and sizes of zero.
    """
    fixed = problem.at_upper_end()
    dims = (fixed.batch or Dim.of(1), fixed.m, fixed.n, fixed.k)
    if fixed.op not in PREDICTED_OPS or not all(dim.is_static and dim.low > 0 for dim in dims):
        return None
    is_plain = fixed.scale is None and fixed.a2 is None and fixed.b2 is None
    if not is_plain or {fixed.a.order, fixed.b.order} - {"row", "col"} or fixed.full_reduction:
        return None
    batch, m, n, k = (dim.low for dim in dims)
    size = item_bytes(fixed.dtype)
    is_aligned = _is_aligned(fixed.a, k, m, size) and _is_aligned(fixed.b, n, k, size)
    rate = "tf32" if fixed.fp32 == "tf32" else _RATES.get(fixed.dtype, fixed.dtype)
    words = [
        rate,
        fixed.op,
        fixed.dtype,
        fixed.dtype_b or "",
        fixed.a.order,
        fixed.b.order,
        fixed.out,
    ]
    is_out_aligned = n * item_bytes(fixed.out) % _WIDEST_LOAD_BYTES == 0
    words += [fixed.bias or "", fixed.fp32 or ""]
    words += ["" if is_aligned else _UNALIGNED, "" if is_out_aligned else _OUT_UNALIGNED]
    if (fixed.alpha, fixed.beta) != (1, 1):
        words.append("scaled")
    return GemmSizes(
        *(batch, m, n, k, rate, size, item_bytes(fixed.out)),
        category=" ".join(filter(None, words)),
        is_aligned=is_aligned,
        is_out_aligned=is_out_aligned,
    )


def kin_of(category: str) -> str:
    """Return what categories have in common whose problems say something of each other's times.

    Other dtypes of the same rate, layouts and ops do, another alignment does not.
    """
    rate, *words = category.split(" ")
    return " ".join([rate, *(word for word in words if word in (_UNALIGNED, _OUT_UNALIGNED))])


def config_of(winner: Winner, library: Winner | None) -> CandidateConfig | None:
    """Return the config of *winner*; None for a library kernel that is not *library*."""
    if library is not None and winner.choice == library:
        return CandidateConfig(LIBRARY_UID)
    if winner.family is Family.EXTERN or winner.family is Family.CPP:
        return None
    kwargs = {name: value for name, value in winner.kwargs if type(value) is int}
    block_m, block_n, block_k, group_m, stages, warps = (
        kwargs.get(name, 0) for name in CONFIG_KWARGS
    )
    split = kwargs.get("k_split", 1)
    return CandidateConfig(winner.uid, block_m, block_n, block_k, group_m, stages, warps, split)


def config_in(op: str, winner: Winner) -> CandidateConfig | None:
    """Return the config of *winner* in a row of *op*; None for another library kernel."""
    return config_of(winner, library_among(op, [winner.choice]))


def library_among(op: str, winners: Iterable[Winner]) -> Winner | None:
    """Return default mode's library kernel for *op* among *winners*; None without any."""
    known = set(winners)
    for uid in (f"aten::bias_{op}", f"aten::{op}"):
        if (winner := Winner(Family.EXTERN, uid)) in known:
            return winner
    return None


def _is_aligned(layout: Layout, along_row: int, along_column: int, size: int) -> bool:
    pitch = along_row if layout.order == "row" else along_column
    if layout.leading is not None:
        pitch = layout.leading.high or layout.leading.low
    return pitch * size % _WIDEST_LOAD_BYTES == 0
