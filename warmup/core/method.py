"""`Method` and `Search`: how candidates are timed, and which candidates a build tries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TOP_K: Final = 4
MAX_TOP_K: Final = 64
SEED: Final = 0  # of operands, inputs and models

OptionValue = bool | int | float | str | None  # of an inductor option


class Launch(StrEnum):
    """How timed calls are launched: one at a time, or as one CUDA graph."""

    EAGER = "eager"
    CUDAGRAPH = "cudagraph"


class L2(StrEnum):
    """Whether the operands of a timed call are in the GPU's last cache: none of them, or all."""

    COLD = "cold"
    WARM = "warm"


class Search(StrEnum):
    """Which candidates a GEMM selection has beyond inductor's own list; narrowest first."""

    IMPORTED = "imported"  # of `warmup import` alone: the given configs and the library's kernels
    DEFAULT = "default"  # persistent TMA templates
    WIDE = "wide"  # also more splits of K, extra tiles, and tiles of neighbouring rows
    EXHAUSTIVE = "exhaustive"  # also every tile of inductor's exhaustive list

    def is_narrower_than(self, other: Search) -> bool:
        """Whether *other* tries candidates that this search does not."""
        order = list(Search)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How candidates are timed, and when two times tie.

    Candidates within ``near_tie`` of the fastest, as a share of its time, tie with it. A row whose
    spread (distance between the quartiles over the median) stays above ``max_spread`` keeps the
    library default. The library default and at most ``fused_top_k`` other candidates are also timed
    with the operations that inductor can fuse into the GEMM; with 0 every GEMM is timed alone.
    """

    launch: Launch = Launch.EAGER
    l2: L2 = L2.COLD
    near_tie: float = 0.03
    max_spread: float = 0.10
    fused_top_k: int = TOP_K
