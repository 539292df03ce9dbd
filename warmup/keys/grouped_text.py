"""`parse_grouped`: a key of grouped products back to its problem."""

from __future__ import annotations

from warmup.keys.gemm_text import read_layout
from warmup.keys.grouped import GROUPED, GroupedProblem, Over


def parse_grouped(key: str) -> GroupedProblem:
    """Return the problem whose key is *key*.

    Raises:
        ProblemError: *key* is no key of a grouped product.
    """
    named = GROUPED.ingredients(key)
    return GroupedProblem(
        groups=int(named["groups"]),
        over=Over(named["over"]),
        m=int(named["m"]),
        n=int(named["n"]),
        k=int(named["k"]),
        dtype=named["dtype"],
        a=read_layout(named["a"]),
        b=read_layout(named["b"]),
        out=named["out"],
    )
