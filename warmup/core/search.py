"""`SearchCounts`: how many candidates a decision had, by where they came from.

Counts only: `warmup.core.method.Search` says how far a build searches, and `warmup.inductor.gemm`
and `warmup.inductor.launch` make the candidates.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from warmup.core.method import Search

_Name = TypeVar("_Name", bound=StrEnum)


class CandidateSource(StrEnum):
    """Where a candidate beyond inductor's own list comes from."""

    TMA = "tma"
    FEW_ROWS = "few_rows"  # templates of warmup's own
    SPLITS = "splits"
    NEIGHBOURS = "neighbours"
    TILES = "tiles"
    EXHAUSTIVE = "exhaustive"
    LISTED_LONGER = "listed_longer"  # of a launch config: what inductor lists under max-autotune
    GRID = "grid"
    DESCENT = "descent"


class Resource(StrEnum):
    """A resource of which a candidate's launch needs more than the device has."""

    SHARED_MEMORY = "shared_memory"
    REGISTERS = "registers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts:
    """How many candidates a decision had.

    ``listed`` counts inductor's own candidates, ``added`` the others by source; a candidate of
    several sources counts for the first. ``pruned`` counts, by resource, the candidates that were
    left out because their launch is impossible, and ``spilling`` those of the added that spill
    registers. ``left_out`` counts the candidates that the bound of a search kept from being tried.
    """

    search: Search
    listed: int
    added: tuple[tuple[CandidateSource, int], ...] = ()
    pruned: tuple[tuple[Resource, int], ...] = ()
    spilling: int = 0
    left_out: int = 0

    @property
    def tried(self) -> int:
        """The number of candidates to compile and measure."""
        return self.listed + sum(count for _, count in self.added)

    def completed(self, offered: int) -> SearchCounts:
        """Return these counts for a selection of *offered* candidates; the rest count as listed.

        Inductor adds C++ templates, and all candidates of a CPU linear, outside of the heuristics
        whose lists are counted.
        """
        return replace(self, listed=self.listed + max(offered - self.tried, 0))

    @property
    def by_source(self) -> str:
        """The counts as words, such as ``18 listed, 7 tma``; those that are zero are left out."""
        parts = [f"{self.listed} listed"]
        parts += [f"{count} {source}" for source, count in self.added]
        parts += [f"{count} pruned by {resource}" for resource, count in self.pruned]
        parts += [f"{self.spilling} spilling"] if self.spilling else []
        parts += [f"{self.left_out} left out"] if self.left_out else []
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.search}: {self.by_source}"

    def __add__(self, later: SearchCounts) -> SearchCounts:
        """Return the sums of these and *later* counts of the same selection."""
        return replace(
            later,
            listed=self.listed + later.listed,
            added=_sum(self.added, later.added),
            pruned=_sum(self.pruned, later.pruned),
            spilling=self.spilling + later.spilling,
            left_out=self.left_out + later.left_out,
        )


def search_to_json(counts: SearchCounts) -> dict[str, Any]:
    """Return *counts* as JSON values; those by source and by resource are objects."""
    named = {"added": dict(counts.added), "pruned": dict(counts.pruned)}
    return {**asdict(counts), **named}


def _sum(
    a: tuple[tuple[_Name, int], ...], b: tuple[tuple[_Name, int], ...]
) -> tuple[tuple[_Name, int], ...]:
    return tuple((Counter(dict(a)) + Counter(dict(b))).items())
