"""Which candidates are timed, and how: the words of a build."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TOP_K: Final = 4
MAX_TOP_K: Final = 64
SEED: Final = 0  # of operands, inputs and models

OptionValue = bool | int | float | str | None  # of an inductor option


class Launch(StrEnum):
    """How timed calls are launched: one by one, or as one CUDA graph."""

    EAGER = "eager"
    CUDAGRAPH = "cudagraph"


class L2(StrEnum):
    """What a timed call finds in the last cache: nothing of its operands, or all of them."""

    COLD = "cold"
    WARM = "warm"


class Search(StrEnum):
    """Which candidates a GEMM selection has, beside those that inductor lists; narrowest first."""

    DEFAULT = "default"  # persistent TMA
    WIDE = "wide"  # more splits of K, stated tiles, and what won nearby
    EXHAUSTIVE = "exhaustive"  # also every tile of inductor's exhaustive list

    def is_narrower_than(self, other: Search) -> bool:
        """Whether *other* tries candidates that this one does not."""
        words = list(Search)
        return words.index(self) < words.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How candidates are timed and when two times are one.

    Candidates within ``near_tie`` of the fastest, as a share of its time, tie with it. A row whose
    spread (distance between the quartiles over the median) stays above ``max_spread`` keeps the
    library default. What can be fused into a GEMM is measured with it, for the library default and
    at most ``fused_top_k`` others; with 0 every GEMM is timed alone.
    """

    launch: Launch = Launch.EAGER
    l2: L2 = L2.COLD
    near_tie: float = 0.03
    max_spread: float = 0.10
    fused_top_k: int = TOP_K
