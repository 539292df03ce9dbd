"""What an installed table did so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warmup.core.events import in_brackets


@dataclass(frozen=True, slots=True)
class Report:
    """What one installed table did so far.

    ``hits`` and ``misses`` count decisions by key, ``uncovered`` counts benchmarks by site;
    ``from_cache`` counts compiled graphs that inductor took whole from its caches under this
    table's digest, consulting nobody, ``cached_decisions`` the decisions those were compiled with
    and ``cached_misses`` those of them that no row had answered; ``unused`` are rows that inductor
    never asked for; those about weights it never asks for.
    """

    digest: str
    hits: Mapping[str, int]
    misses: Mapping[str, int]
    miss_reasons: Mapping[str, int]
    uncovered: Mapping[str, int]
    tuned: int
    from_cache: int
    cached_decisions: int
    cached_misses: int
    unused: tuple[str, ...]

    @property
    def is_silent(self) -> bool:
        """True when no decision was asked for, or had been for a graph taken from a cache."""
        return not (self.hits or self.misses or self.tuned or self.cached_decisions)

    def __str__(self) -> str:
        misses = sum(self.misses.values())
        text = (
            f"warmup {self.digest[:12]}: {sum(self.hits.values())} hits, {misses} misses"
            f"{in_brackets(self.miss_reasons)}, "
            f"{sum(self.uncovered.values())} uncovered benchmarks"
            f"{in_brackets(self.uncovered)}, "
            f"{self.from_cache} graphs from cache ({self.cached_decisions} decisions"
            f"{f', {self.cached_misses} without a row' if self.cached_misses else ''}), "
            f"{len(self.unused)} rows unused"
        )
        if self.tuned:
            text += f", {self.tuned} tuned here"
        if self.is_silent:
            text += " [SILENT: nothing was asked; compile after install, and under no_grad on CPU]"
        return text
