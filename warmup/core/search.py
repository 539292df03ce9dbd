"""How far a build looks for GEMM kernels, and what a search came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from warmup.core.method import Search

_Name = TypeVar("_Name", bound=StrEnum)


class CandidateSource(StrEnum):
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
    added: tuple[tuple[CandidateSource, int], ...] = ()
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


def _sum(
    one: tuple[tuple[_Name, int], ...], other: tuple[tuple[_Name, int], ...]
) -> tuple[tuple[_Name, int], ...]:
    return tuple((Counter(dict(one)) + Counter(dict(other))).items())


class Resource(StrEnum):
    """What a device has too little of for a launch."""

    SHARED_MEMORY = "shared_memory"
    REGISTERS = "registers"
