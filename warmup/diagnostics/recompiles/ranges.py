"""`cover`: compiles sizes until an artifact serves each size of a range, and returns the ranges.

Knows artifacts and guards only: the function that compiles is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warmup.diagnostics.recompiles.causes import cause_of, first_cause
from warmup.diagnostics.recompiles.section import Span
from warmup.inductor.guard import Artifact, Guard


@dataclass(frozen=True, slots=True)
class Coverage:
    """The spans of every graph, and the sizes that were compiled or found to be served.

    ``uncovered`` is the smallest size without an artifact, None where every size has one.
    """

    spans: tuple[Span, ...]
    tried: tuple[int, ...]
    uncovered: int | None


def cover(
    compile_at: Callable[[int], Sequence[Artifact]],
    sizes: Sequence[int],
    largest: int,
    limit: int,
    served: Sequence[int] = (),
) -> Coverage:
    """Return the ranges that artifacts serve, after compiling *sizes* and then sizes without one.

    *compile_at* runs the model at a size and returns the new artifacts, none where an earlier
    artifact served. In the end every size from the smallest of *sizes* and *served* to *largest* is
    served, unless that takes more than *limit* sizes. A span has those of *served* that it serves.
    """
    compiler = _RangeCompiler(compile_at, min((*sizes, *served)), largest)
    for size in sizes:
        compiler.run(size)
    while (missing := compiler.missing()) is not None and len(compiler.tried) < limit:
        compiler.run(missing)
    return Coverage(
        compiler.spans(tuple(dict.fromkeys((*sizes, *served)))), tuple(compiler.tried), missing
    )


class _RangeCompiler:
    """The artifacts so far, each with dynamo's reason if it was unexpected."""

    def __init__(
        self, compile_at: Callable[[int], Sequence[Artifact]], smallest: int, largest: int
    ) -> None:
        self.compile_at = compile_at
        self.smallest = smallest
        self.largest = largest
        self.tried: list[int] = []
        self.artifacts: list[tuple[Artifact, str]] = []
        self._served: dict[int, _ServedSizes] = {}

    def run(self, size: int) -> None:
        """Run the model at *size*, and keep the artifacts that this compiled."""
        before = {artifact.graph for artifact, _ in self.artifacts if artifact.serves(size)}
        self.tried.append(size)
        for artifact in self.compile_at(size):
            unexpected = artifact.why if artifact.graph in before else ""
            self.artifacts.append((artifact, unexpected))

    def missing(self) -> int | None:
        """Return the smallest size for which a graph has no artifact, None if there is none."""
        graphs = {artifact.graph for artifact, _ in self.artifacts}
        sizes = [size for graph in graphs if (size := self._missing_in(graph)) is not None]
        return min(sizes, default=None)

    def _missing_in(self, graph: int) -> int | None:
        size = self.smallest
        own = [artifact for artifact, _ in self.artifacts if artifact.graph == graph]
        while size <= self.largest:
            serving = next((artifact for artifact in own if artifact.serves(size)), None)
            if serving is None:
                if size in self.tried:  # the model ran at this size without this graph
                    size += 1
                    continue
                return size
            served = self.served_by(serving)
            if served.conditions:
                size += 1
            elif served.high is None:
                return None
            else:
                size = served.high + 1
        return None

    def served_by(self, artifact: Artifact) -> _ServedSizes:
        """Return the sizes that *artifact* serves around the size at which it was compiled."""
        if id(artifact) not in self._served:
            self._served[id(artifact)] = _ServedSizes.of(artifact, self.largest)
        return self._served[id(artifact)]

    def spans(self, sizes: Sequence[int]) -> tuple[Span, ...]:
        """Return the span of each artifact, by graph and ascending; *sizes* are the requested."""
        taken: set[tuple[int, int]] = set()
        spans = []
        for artifact, unexpected in self.artifacts:
            own = tuple(
                size
                for size in sizes
                if artifact.serves(size) and (artifact.graph, size) not in taken
            )
            taken |= {(artifact.graph, size) for size in own}
            served = self.served_by(artifact)
            spans.append(
                Span(
                    graph=artifact.graph,
                    low=served.low,
                    high=served.high,
                    tuned_at=artifact.size,
                    sizes=own,
                    low_cause=first_cause(served.from_below),
                    high_cause=first_cause(served.from_above),
                    conditions=tuple(cause_of(guard) for guard in served.conditions),
                    unexpected=unexpected,
                    unbound=artifact.unbound,
                )
            )
        return tuple(sorted(spans, key=lambda span: (span.graph, span.low)))


@dataclass(frozen=True, slots=True)
class _ServedSizes:
    """An interval of sizes, the guards at its ends, and those that exclude sizes inside it."""

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
            _excluding(recurring, ceiling),
        )


def _excluding(conditions: Sequence[Guard], ceiling: int) -> tuple[Guard, ...]:
    """Return those of *conditions* that exclude a size which the conditions before them allow."""
    allowed = list(range(1, ceiling + 1))
    excluding = []
    for guard in conditions:
        still_allowed = [size for size in allowed if guard.holds(size)]
        if len(still_allowed) < len(allowed):
            excluding.append(guard)
        allowed = still_allowed
    return tuple(excluding)
