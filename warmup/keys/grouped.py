"""`GroupedProblem`: products of groups of rows in one call; row kind ``grouped_mm``.

    grouped_mm groups=8 over=m m=1024 n=28672 k=4096 bf16 a=row b=col out=bf16

``over`` is the dim that groups divide, at offsets that are known at run time only: the rows ``m``
of a layer of experts, ``k`` or ``n`` in its backward, or ``nothing`` where each group has matrices
of its own. A divided size is the sum of all groups'. What follows is not part of a key: candidates
are timed alone.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.core.roofline import Work, item_bytes
from warmup.core.rows import Family
from warmup.keys.gemm import LAYOUT, Layout, ProductProblem
from warmup.keys.kind import Kind


def _work(ingredients: Mapping[str, str]) -> Work | None:
    problem = GroupedProblem.of(ingredients)
    groups, m, n, k = problem.groups, problem.m, problem.n, problem.k
    of_each = OF_EACH_GROUP[problem.over]
    sizes = {"a": m * k, "b": k * n, "out": m * n}
    elements = {name: size * (groups if name in of_each else 1) for name, size in sizes.items()}
    read = (elements["a"] + elements["b"]) * item_bytes(problem.dtype)
    products = groups if problem.over is Over.NOTHING else 1
    moved = read + elements["out"] * item_bytes(problem.out)
    return Work(problem.dtype, products * 2 * m * n * k, moved)


GROUPED: Final = Kind(
    name="grouped_mm",
    pattern=re.compile(
        r"grouped_mm groups=[0-9]+ over=(?:m|n|k|nothing) m=[0-9]+ n=[0-9]+ k=[0-9]+"
        rf" [a-z][a-z0-9_]* a={LAYOUT} b={LAYOUT} out=[a-z][a-z0-9_]*"
    ),
    words=("op", "dtype"),
    fixed=1,
    families=frozenset({Family.EXTERN, Family.TEMPLATE}),
    nearest_by=("m",),
    hooks="warmup.inductor.selections:GroupedProducts",
    rebuild="warmup.models.rebuilt:rebuild_grouped",
    sites=frozenset({"select:grouped_mm"}),
    work=_work,
    brief_format="{op} {groups}x {n}x{k}",
)


class Over(StrEnum):
    """Which dim the groups divide."""

    M = "m"
    N = "n"
    K = "k"
    NOTHING = "nothing"


# What has a matrix for each group; the others have one that the groups divide.
OF_EACH_GROUP: Final = {
    Over.M: frozenset({"b"}),
    Over.N: frozenset({"a"}),
    Over.K: frozenset({"out"}),
    Over.NOTHING: frozenset({"a", "b", "out"}),
}


@dataclass(frozen=True, kw_only=True)
class GroupedProblem(ProductProblem):
    """Products of ``groups`` pairs of matrices, whose sizes ``m``, ``n`` and ``k`` are elements.

    The size that groups divide, ``over``, is that of all groups together.
    """

    kind = GROUPED

    op: str = "grouped_mm"
    groups: int
    over: Over
    m: int
    n: int
    k: int
    dtype: str
    a: Layout
    b: Layout
    out: str


def ends_of_groups(rows: int, groups: int) -> tuple[int, ...]:
    """Return where each of *groups* ends if rows go to any at random; equal at every call."""
    chance = random.Random(0)  # noqa: S311  no secret
    sizes = [0] * groups
    for group in chance.choices(range(groups), k=rows):
        sizes[group] += 1
    return tuple(itertools.accumulate(sizes))
