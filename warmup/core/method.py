"""`Method` and `Search`: how candidates are timed, and which candidates a build tries."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from warmup.core.errors import SettingsError

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
        order = list(Search)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How candidates are timed, and when two times tie.

    Candidates within ``near_tie`` of the fastest, as a share of its time, tie with it. A row whose
    spread (distance between the quartiles over the median) stays above ``max_spread`` keeps the
    library default. The library default and ``fused_top_k`` others are also timed with the
    operations that inductor can fuse into the GEMM; with 0 every GEMM is timed alone.
    """

    launch: Launch = Launch.EAGER
    l2: L2 = L2.COLD
    near_tie: float = 0.03
    max_spread: float = 0.10
    fused_top_k: int = TOP_K


# `COMPILE_MODES`: the modes of torch.compile; `CompileOrder`: when a build compiles candidates.

GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")  # those that record CUDA graphs
COMPILE_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CompileOrder(StrEnum):
    """When the candidates of a graph are compiled.

    ``AS_ASKED``: those of a question when inductor asks it. ``BESIDE``: all at once, beside
    measurements. ``BEFORE``: all before the first measurement, so that the host is idle then.
    """

    AS_ASKED = "as asked"
    BESIDE = "beside"
    BEFORE = "before"


# `read_flag`: a switch that an argument or an environment variable turns on.


def read_flag(argument: bool | None, variable: str) -> bool:  # noqa: FBT001  passed on
    """Return *argument* or, where it is None, whether the environment *variable* is ``1``.

    Unset, empty and ``0`` mean off; a SettingsError for any other value.
    """
    if argument is not None:
        return argument
    value = os.environ.get(variable, "")
    if value not in {"", "0", "1"}:
        raise SettingsError(f"{variable}={value!r} is neither on nor off", "set it to 1 or to 0")
    return value == "1"


# `SearchCounts`: how many candidates a decision had, by where they came from.

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

    ``listed`` counts inductor's own, ``added`` the others by source; a candidate of several counts
    for the first. ``pruned`` counts, by resource, those whose launch is impossible, ``spilling``
    those of the added that spill registers, and ``left_out`` those that the bound of a search kept
    from being tried.
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

        Inductor adds C++ templates, and all candidates of a CPU linear, outside of the counted
        lists.
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
