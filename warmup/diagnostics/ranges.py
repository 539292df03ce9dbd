"""`cover`: the ranges of sizes that compiled artifacts serve, and why each range ends.

Knows artifacts and guards only: the function that compiles is an argument. The cause of an end
follows from the source line of torch that compared the size; lines that `_KNOWN` does not list are
``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.inductor.guard import Artifact, Guard, SourceLine


class CauseKind(StrEnum):
    """Why a guard exists."""

    LIMIT = "limit"
    HEURISTIC = "heuristic"
    MODEL = "model"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a range ends: a sentence and the guard's expression.

    ``place`` is the line in torch that compared the size, ``user`` the line of the model.
    """

    kind: CauseKind
    sentence: str
    expression: str
    place: SourceLine | None
    user: SourceLine | None


_INT32: Final = 2**31 - 1
_PAD_MM: Final = "torch/_inductor/fx_passes/pad_mm.py"
_ASKS_BOUND: Final = (
    "to decide if padding a matmul may pay, inductor compares its sizes to see whether it is bound "
    "by compute; in the backward of a Linear this dim is the inner one"
)
_ASKS_PADDING: Final = (
    "to decide if padding a matmul may pay, inductor compares its operations with the bytes that "
    "it moves"
)
_TMA: Final = (
    "to list a persistent TMA template (triton.enable_persistent_tma_matmul), inductor guards the "
    "sizes that it checks, whichever candidate wins"
)
_KERNEL: Final = "inductor looks at this size to choose how a kernel is written"
_LOWERING: Final = "inductor looks at this size to choose how an operation is computed"
_REWRITE: Final = "a pass of inductor looks at this size to decide how to rewrite the graph"
_BY_MODEL: Final = "the model's own code depends on this size"
_SHAPES: Final = "an operation of the model is defined for these sizes only"
_SMALL: Final = (
    "sizes 0 and 1 are always compiled on their own (0/1 specialisation); torch takes a dynamic "
    "size to be 2 or more"
)
_INDEX: Final = "32-bit indices end here; larger sizes need kernels with 64-bit indices"
_ONE_SIZE: Final = (
    "dynamo compiled this graph for one size: the dim reached it unmarked, as it does behind a "
    "graph break, until another size is seen"
)
_UNKNOWN: Final = "torch compares this size here; warmup does not know why"
# The beginning of a path, a function or empty for any, and the cause. The first match counts.
_KNOWN: Final = (
    (_PAD_MM, "is_mm_compute_bound", CauseKind.HEURISTIC, _ASKS_BOUND),
    (_PAD_MM, "", CauseKind.HEURISTIC, _ASKS_PADDING),
    ("torch/_inductor/utils.py", "use_triton_tma_template", CauseKind.HEURISTIC, _TMA),
    ("torch/_inductor/utils.py", "can_use_tma", CauseKind.HEURISTIC, _TMA),
    ("torch/_inductor/fx_passes/", "", CauseKind.HEURISTIC, _REWRITE),
    ("torch/_inductor/codegen/", "", CauseKind.HEURISTIC, _KERNEL),
    ("torch/_inductor/", "", CauseKind.HEURISTIC, _LOWERING),
    ("torch/_dynamo/", "", CauseKind.MODEL, _BY_MODEL),
    ("torch/_refs/", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_prims_common/", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_meta_registrations.py", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_subclasses/", "", CauseKind.LIMIT, _SHAPES),
)


def cause_of(guard: Guard) -> Cause:
    """Return the cause of *guard*."""
    kind, sentence = _classify(guard)
    return Cause(kind, sentence, guard.expression, guard.place, guard.user)


def first_cause(guards: Sequence[Guard]) -> Cause | None:
    """Return the first known cause of *guards*, else the first cause, None without guards."""
    causes = [cause_of(guard) for guard in guards]
    known = (cause for cause in causes if cause.kind is not CauseKind.UNKNOWN)
    return next(known, causes[0] if causes else None)


def _classify(guard: Guard) -> tuple[CauseKind, str]:
    if guard.is_default:
        return CauseKind.LIMIT, _SMALL
    if str(_INT32) in guard.expression or str(_INT32 + 1) in guard.expression:
        return CauseKind.LIMIT, _INDEX
    if guard.place is None:
        return CauseKind.UNKNOWN, _ONE_SIZE if guard.is_fixed else _UNKNOWN
    path, function = guard.place.path, guard.place.function
    for beginning, name, kind, sentence in _KNOWN:
        if path.startswith(beginning) and name in ("", function):
            return kind, sentence
    if not path.startswith("torch/"):
        return CauseKind.MODEL, _BY_MODEL
    return CauseKind.UNKNOWN, _UNKNOWN


@dataclass(frozen=True, slots=True)
class Span:
    """The sizes that one artifact serves: ``low`` to ``high``, both inclusive, None for no end.

    All of them run the kernels that were chosen for ``tuned_at``, the size at which the artifact
    was compiled. ``sizes`` are the requested sizes that it serves. With ``conditions`` it serves
    only the sizes that meet them. ``unexpected`` is dynamo's reason for compiling where an earlier
    artifact should have served ``tuned_at``, else empty.
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
    """The spans of every graph, and the sizes at which the model ran.

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
) -> Coverage:
    """Return the ranges that artifacts serve, after compiling *sizes* and then sizes without one.

    *compile_at* runs the model at a size and returns the new artifacts, none where an earlier
    artifact served. In the end every size from the smallest of *sizes* to *largest* is served,
    unless that takes more than *limit* sizes.
    """
    compiler = _RangeCompiler(compile_at, min(sizes), largest)
    for size in sizes:
        compiler.run(size)
    while (missing := compiler.missing()) is not None and len(compiler.tried) < limit:
        compiler.run(missing)
    return Coverage(compiler.spans(sizes), tuple(compiler.tried), missing)


class _RangeCompiler:
    """The artifacts so far, each with dynamo's reason if it was unexpected."""

    def __init__(
        self, compile_at: Callable[[int], Sequence[Artifact]], smallest: int, largest: int
    ) -> None:
        self.compile_at = compile_at
        self.smallest = smallest
        self.largest = largest
        self.tried: list[int] = []
        self.artifacts: list[tuple[Artifact, str, _ServedSizes]] = []

    def run(self, size: int) -> None:
        """Run the model at *size*, and keep the artifacts that this compiled."""
        before = {artifact.graph for artifact, *_ in self.artifacts if artifact.serves(size)}
        self.tried.append(size)
        for artifact in self.compile_at(size):
            unexpected = artifact.why if artifact.graph in before else ""
            served = _served_sizes(artifact, self.largest)
            self.artifacts.append((artifact, unexpected, served))

    def missing(self) -> int | None:
        """Return the smallest size for which a graph has no artifact, None if there is none."""
        graphs = {artifact.graph for artifact, *_ in self.artifacts}
        sizes = [size for graph in graphs if (size := self._missing_in(graph)) is not None]
        return min(sizes, default=None)

    def _missing_in(self, graph: int) -> int | None:
        size = self.smallest
        own = [(each, served) for each, _, served in self.artifacts if each.graph == graph]
        while size <= self.largest:
            served = next((served for each, served in own if each.serves(size)), None)
            if served is None:
                if size not in self.tried:
                    return size
                size += 1  # the model ran at this size without this graph
            elif served.conditions:
                size += 1
            elif served.high is None:
                return None
            else:
                size = served.high + 1
        return None

    def spans(self, sizes: Sequence[int]) -> tuple[Span, ...]:
        """Return the span of each artifact, by graph and ascending; *sizes* are the requested."""
        left: dict[int, list[int]] = {}
        spans = []
        for artifact, unexpected, served in self.artifacts:
            waiting = left.setdefault(artifact.graph, list(dict.fromkeys(sizes)))
            own = tuple(size for size in waiting if artifact.serves(size))
            left[artifact.graph] = [size for size in waiting if size not in own]
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


def _served_sizes(artifact: Artifact, ceiling: int) -> _ServedSizes:
    """Return the sizes that *artifact* serves around the size at which it was compiled."""
    recurring = [guard for guard in artifact.guards if guard.recurs(artifact.size, ceiling)]
    ends = [
        (guard, *guard.extent(artifact.size, ceiling))
        for guard in artifact.guards
        if guard not in recurring
    ]
    low = max((low for _, low, _ in ends), default=0)
    high = min((high for _, _, high in ends if high is not None), default=None)
    excluding = []
    allowed = list(range(1, ceiling + 1)) if recurring else []
    for guard in recurring:  # only those that exclude a size which the guards before them allow
        still_allowed = [size for size in allowed if guard.holds(size)]
        if len(still_allowed) < len(allowed):
            excluding.append(guard)
        allowed = still_allowed
    return _ServedSizes(
        low,
        high,
        tuple(guard for guard, end, _ in ends if end == low and end > 0),
        tuple(guard for guard, _, end in ends if high is not None and end == high),
        tuple(excluding),
    )
