"""Compiling sizes until each of a range is served by an artifact, and what ranges that makes.

Knows artifacts and guards only: what compiles is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warmup.diagnostics.recompiles.causes import Cause, cause_of, first_cause
from warmup.inductor.guard import Artifact, Guard


@dataclass(frozen=True, slots=True)
class Span:
    """The sizes that one artifact serves: ``low`` to ``high``, both inclusive, None for no end.

    All of them run what was chosen at ``tuned_at``, the size that it was compiled at. ``sizes`` are
    those asked about that it serves. With ``conditions`` it serves only the sizes that meet them.
    ``unexpected`` is what dynamo said where an artifact from before should have served
    ``tuned_at`` too.
    """

    graph: int
    low: int
    high: int | None
    tuned_at: int
    sizes: tuple[int, ...]
    low_cause: Cause | None
    high_cause: Cause | None
    conditions: tuple[Cause, ...] = ()
    unexpected: str = ""
    unbound: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was compiled: the spans of every graph, how many sizes that took, and what is left.

    ``uncovered`` is the smallest size that no artifact was found for, None where all have one.
    """

    spans: tuple[Span, ...]
    tried: tuple[int, ...]
    uncovered: int | None


def cover(
    compile_at: Callable[[int], Sequence[Artifact]],
    sizes: Sequence[int],
    largest: int,
    limit: int,
) -> Coverage:
    """Call *compile_at* with *sizes* in turn, then with sizes that no artifact serves.

    It returns what had to be compiled for a size, nothing where an artifact from before served.
    Every size from the smallest of *sizes* to *largest* is served at the end, unless more than
    *limit* sizes would have to be tried.
    """
    work = _Cover(compile_at, min(sizes), largest)
    for size in sizes:
        work.run(size)
    while (missing := work.missing()) is not None and len(work.tried) < limit:
        work.run(missing)
    return Coverage(work.spans(sizes), tuple(work.tried), missing)


class _Cover:
    def __init__(
        self, compile_at: Callable[[int], Sequence[Artifact]], smallest: int, largest: int
    ) -> None:
        self.compile_at = compile_at
        self.smallest = smallest
        self.largest = largest
        self.tried: list[int] = []
        self.artifacts: list[tuple[Artifact, str]] = []
        self._extents: dict[int, _ServedSizes] = {}

    def run(self, size: int) -> None:
        """Run the model at *size*, and keep what that compiled."""
        before = {artifact.graph for artifact, _ in self.artifacts if artifact.serves(size)}
        self.tried.append(size)
        for artifact in self.compile_at(size):
            unexpected = artifact.why if artifact.graph in before else ""
            self.artifacts.append((artifact, unexpected))

    def missing(self) -> int | None:
        """Return the smallest size that some graph has no artifact for, None without any."""
        graphs = {artifact.graph for artifact, _ in self.artifacts}
        found = [size for graph in graphs if (size := self._missing_in(graph)) is not None]
        return min(found, default=None)

    def _missing_in(self, graph: int) -> int | None:
        size = self.smallest
        own = [artifact for artifact, _ in self.artifacts if artifact.graph == graph]
        while size <= self.largest:
            serving = next((each for each in own if each.serves(size)), None)
            if serving is None:
                if size in self.tried:  # it ran: another graph was taken there, or none was needed
                    size += 1
                    continue
                return size
            extent = self.extent(serving)
            if extent.conditions:
                size += 1
            elif extent.high is None:
                return None
            else:
                size = extent.high + 1
        return None

    def extent(self, artifact: Artifact) -> _ServedSizes:
        """Return the interval around the size that *artifact* was compiled at."""
        if id(artifact) not in self._extents:
            self._extents[id(artifact)] = _ServedSizes.of(artifact, self.largest)
        return self._extents[id(artifact)]

    def spans(self, sizes: Sequence[int]) -> tuple[Span, ...]:
        """Return the sizes of each artifact, by graph, in the order in which they were made."""
        served: set[tuple[int, int]] = set()
        spans = []
        for artifact, unexpected in self.artifacts:
            own = tuple(
                size
                for size in sizes
                if artifact.serves(size) and (artifact.graph, size) not in served
            )
            served |= {(artifact.graph, size) for size in own}
            extent = self.extent(artifact)
            spans.append(
                Span(
                    graph=artifact.graph,
                    low=extent.low,
                    high=extent.high,
                    tuned_at=artifact.size,
                    sizes=own,
                    low_cause=first_cause(extent.from_below),
                    high_cause=first_cause(extent.from_above),
                    conditions=tuple(cause_of(guard) for guard in extent.conditions),
                    unexpected=unexpected,
                    unbound=artifact.unbound,
                )
            )
        return tuple(sorted(spans, key=lambda span: (span.graph, span.low)))


@dataclass(frozen=True, slots=True)
class _ServedSizes:
    """An interval, the guards that end it, and those that leave out sizes inside it."""

    low: int
    high: int | None
    from_below: tuple[Guard, ...]
    from_above: tuple[Guard, ...]
    conditions: tuple[Guard, ...]

    @classmethod
    def of(cls, artifact: Artifact, ceiling: int) -> _ServedSizes:
        recurring = [g for g in artifact.guards if g.recurs(artifact.size, ceiling)]
        ends = [
            (guard, *guard.extent(artifact.size, ceiling))
            for guard in artifact.guards
            if guard not in recurring
        ]
        low = max((low for _, low, _ in ends), default=0)
        highs = [high for _, _, high in ends if high is not None]
        high = min(highs, default=None)
        return cls(
            low,
            high,
            tuple(guard for guard, end, _ in ends if end == low and end > 0),
            tuple(guard for guard, _, end in ends if high is not None and end == high),
            _telling(recurring, ceiling),
        )


def _telling(conditions: Sequence[Guard], ceiling: int) -> tuple[Guard, ...]:
    """Return those of *conditions* that leave out a size that none before them does."""
    left = list(range(1, ceiling + 1))
    telling = []
    for guard in conditions:
        kept = [size for size in left if guard.holds(size)]
        if len(kept) < len(left):
            telling.append(guard)
        left = kept
    return tuple(telling)
