"""`Report`: what an installed table has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warmup.core.counted import counted
from warmup.core.events import in_brackets, selections


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of one installed table so far.

    ``hits`` and ``misses`` count decisions by key, ``miss_reasons`` the misses by reason,
    ``uncovered`` decisions of no row kind, by site; ``tuned`` counts problems measured by a
    server with ``on_miss="tune"``. ``from_cache`` counts graphs that inductor loaded from its
    caches under this table's digest: they skip the lookups, so their cache entries carry the counts
    ``cached_decisions`` and ``cached_misses``, decisions without a row. ``foreign`` counts loaded
    graphs that were compiled under another table, by its digest, or ``none`` for no table; refused
    graphs are among them. ``unused`` are rows that inductor never asked for; rows for weights are
    no lookups, and not among them. ``mismatch`` is 1 where nothing of the table is applied, since
    it is for another device or runtime. ``compiles`` counts graphs that inductor compiled or loaded
    from its caches, ``compile_seconds`` is the time that threads spent on them, all threads
    together. ``uncompiled`` counts frames that torch.compile left uncompiled, whole or in a part,
    each with torch's reason, ``changed`` how often weights were changed that a frame had frozen.
    ``advised`` is what to do about the misses, by reason.
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
    foreign: Mapping[str, int]
    unused: tuple[str, ...]
    mismatch: int = 0
    compiles: int = 0
    compile_seconds: float = 0.0
    uncompiled: Mapping[str, int] = field(default_factory=dict)
    advised: tuple[str, ...] = ()
    changed: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_silent(self) -> bool:
        """Whether nothing was looked up, no row kind was lacking, and no cached graph decided."""
        is_asked = self.hits or self.misses or self.tuned or selections(self.uncovered)
        return not (is_asked or self.cached_decisions)

    @property
    def is_clean(self) -> bool:
        """Whether the table was asked, rows answered each decision, and nothing was measured.

        No loaded graph is another table's either.
        """
        is_missed = self.misses or self.cached_misses or self.foreign
        return not (is_missed or self.uncovered or self.is_silent)

    def __str__(self) -> str:
        misses = sum(self.misses.values())
        text = (
            f"warmup {self.digest[:12]}: {counted(sum(self.hits.values()), 'hit')}, "
            f"{counted(misses, 'miss')}"
            f"{in_brackets(self.miss_reasons)}, "
            f"{sum(self.uncovered.values())} uncovered{in_brackets(self.uncovered)}, "
            f"{counted(self.from_cache, 'graph')} from cache "
            f"({counted(self.cached_decisions, 'decision')}"
            f"{f', {self.cached_misses} without a row' if self.cached_misses else ''}), "
            f"{counted(len(self.unused), 'row')} unused"
        )
        if self.foreign:
            count = sum(self.foreign.values())
            text += f", {counted(count, 'foreign graph')}{in_brackets(self.foreign)}"
        if self.uncompiled:
            frames = "; ".join(self.uncompiled)
            text += f", {counted(len(self.uncompiled), 'uncompiled frame')} ({frames})"
        if self.changed:
            again = counted(sum(self.changed.values()), "graph")
            text += f", {again} with changed weights ({'; '.join(self.changed)})"
        if self.tuned:
            text += f", {self.tuned} tuned here"
        if self.advised:
            text += f" [{'; '.join(self.advised)}]"
        if self.mismatch:
            text += " [MISMATCH: the table is for another device or runtime, and was not applied]"
        elif self.is_silent and self.foreign:
            text += " [SILENT: nothing was asked; the graphs that were loaded are not this table's]"
        elif self.is_silent:
            text += f" [SILENT: nothing was asked; {what_was_compiled(self.compiles)}]"
        return text


def what_was_compiled(compiles: int) -> str:
    """Return what is known of a process whose *compiles* asked nothing."""
    if not compiles:
        return (
            "nothing was compiled after the install: call what torch.compile returns after it, and "
            "not what was compiled before"
        )
    return (
        f"{counted(compiles, 'compile')} had no decision for a table: no matmul with several "
        "candidates was in a graph, or gradients were on where weights are frozen"
    )
