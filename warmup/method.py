"""How candidates are timed: the words of a policy. Floor 0: stdlib only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Launch(StrEnum):
    """How timed calls are launched: one by one, or as one CUDA graph."""

    EAGER = "eager"
    CUDAGRAPH = "cudagraph"


class L2(StrEnum):
    """What a timed call finds in the last cache: nothing of its operands, or all of them."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How candidates are timed and when two times are one.

    Candidates within ``near_tie`` of the fastest, as a share of its time, tie with it. A row whose
    spread (distance between the quartiles over the median) stays above ``max_spread`` keeps the
    library default.
    """

    launch: Launch = Launch.EAGER
    l2: L2 = L2.COLD
    near_tie: float = 0.03
    max_spread: float = 0.10
