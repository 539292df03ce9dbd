"""How far a build looks for GEMM kernels, and what a search came to. Floor 0: stdlib only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from warmup.choice import Family, Row, Winner
from warmup.method import Search
from warmup.problem import GEMM
from warmup.tile import Resource

MOST_NEIGHBOURS: Final = 8
_Name = TypeVar("_Name", bound=StrEnum)
_SAME: Final = ("op", "dtype", "dtype_b", "a", "b", "a2", "b2", "out")
_SIZES: Final = ("batch", "m", "n", "k")


class Source(StrEnum):
    """Where a candidate beyond inductor's list comes from."""

    TMA = "tma"
    SPLITS = "splits"
    NEIGHBOURS = "neighbours"
    TILES = "tiles"
    EXHAUSTIVE = "exhaustive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What one search came to, in candidates.

    ``listed`` are inductor's own. ``added`` says where others came from; one that several sources
    name counts for the first of them. ``pruned`` are those that were left out, since a launch is
    impossible; ``spilling`` those of the added that keep more in registers than there are.
    """

    search: Search
    listed: int
    added: tuple[tuple[Source, int], ...] = ()
    pruned: tuple[tuple[Resource, int], ...] = ()
    spilling: int = 0

    @property
    def tried(self) -> int:
        """How many are to be compiled and measured."""
        return self.listed + sum(count for _, count in self.added)

    def completed(self, offered: int) -> Searched:
        """Return this for a selection that *offered* so many: what no source added was listed.

        Inductor lists C++ templates, and all of a CPU linear, after and beside its own heuristics.
        """
        return replace(self, listed=self.listed + max(offered - self.tried, 0))

    def __str__(self) -> str:
        said = [f"{self.listed} listed"]
        said += [f"{count} {source}" for source, count in self.added]
        said += [f"{count} pruned by {resource}" for resource, count in self.pruned]
        said += [f"{self.spilling} spilling"] if self.spilling else []
        return f"{self.search}: {', '.join(said)}"

    def __add__(self, later: Searched) -> Searched:
        """Return this and a *later* search for the same selection as one."""
        return replace(
            later,
            listed=self.listed + later.listed,
            added=_sum(self.added, later.added),
            pruned=_sum(self.pruned, later.pruned),
            spilling=self.spilling + later.spilling,
        )


def searched_to_json(searched: Searched) -> dict[str, Any]:
    """Return *searched* as JSON values: counts by source and by resource are objects."""
    counts = {"added": dict(searched.added), "pruned": dict(searched.pruned)}
    return {**asdict(searched), **counts}


def neighbours_of(
    key: str, rows: Mapping[str, Row], most: int = MOST_NEIGHBOURS
) -> tuple[Winner, ...]:
    """Return the template winners of the *rows* nearest to *key*, at most *most*, nearest first.

    Rows of the same op, dtypes and operand orders count. Near is near in size, batch, m, n and k,
    by ratio: twice as large is as far as half as large. Equal winners count once, and ties go to
    key order, so that the answer does not depend on the order of *rows*.

    Raises:
        ProblemError: *key* is not a GEMM key.
    """
    asked = GEMM.ingredients(key)
    near: list[tuple[float, str]] = []
    for other, row in rows.items():
        if row.winner.family is Family.TEMPLATE:
            found = GEMM.ingredients(other)
            if all(_plain(found.get(name)) == _plain(asked.get(name)) for name in _SAME):
                near.append((_distance(found, asked), other))
    winners = dict.fromkeys(rows[other].winner for _, other in sorted(near))
    return tuple(winners)[:most]


def _sum(
    one: tuple[tuple[_Name, int], ...], other: tuple[tuple[_Name, int], ...]
) -> tuple[tuple[_Name, int], ...]:
    return tuple((Counter(dict(one)) + Counter(dict(other))).items())


def _plain(value: str | None) -> str | None:
    """Return an ingredient without its strides."""
    return None if value is None else value.partition("/")[0].partition("@")[0]


def _distance(found: Mapping[str, str], asked: Mapping[str, str]) -> float:
    pairs = ((_low(found.get(name, "1")), _low(asked.get(name, "1"))) for name in _SIZES)
    return round(sum(abs(math.log(one / other)) for one, other in pairs), 9)


def _low(size: str) -> int:
    return max(int(size.partition("..")[0]), 1)
