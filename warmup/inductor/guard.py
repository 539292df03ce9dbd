"""`Guard` and `Artifact`: the sizes at which a compiled artifact is valid. Names no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NO_END: Final = 2**62  # a guard that holds here holds at every larger size


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of source code; paths inside torch begin with ``torch/``."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on a size under which an artifact is valid, and the line that added it.

    ``place`` is the line of torch that added the guard, ``user`` the line of the model being traced
    then. ``is_linear`` means that the guard holds on a single interval, whose ends can be bisected.
    ``is_default`` marks the range that torch gives every dynamic size before it sees the model;
    ``is_fixed`` marks a guard that allows a single size.
    """

    expression: str
    holds: Callable[[int], bool]
    is_linear: bool
    place: SourceLine | None
    user: SourceLine | None = None
    is_default: bool = False
    is_fixed: bool = False

    def extent(self, size: int, ceiling: int) -> tuple[int, int | None]:
        """Return the ends of the interval around *size* on which the guard holds; None for no end.

        A guard that is not linear is evaluated size by size, up to *ceiling*.
        """
        if not self.is_linear:
            return self._scan(size, ceiling)
        low = _last(self.holds, size, 0)
        return low, None if self.holds(NO_END) else _last(self.holds, size, NO_END)

    def recurs(self, size: int, ceiling: int) -> bool:
        """Return whether the guard holds up to *ceiling* at a size outside its `extent`."""
        if self.is_linear:
            return False
        low, high = self._scan(size, ceiling)
        after = ceiling if high is None else high
        outside = (*range(1, low), *range(after + 1, ceiling + 1))
        return any(self.holds(other) for other in outside)

    def _scan(self, size: int, ceiling: int) -> tuple[int, int | None]:
        low = high = size
        while low > 1 and self.holds(low - 1):
            low -= 1
        while high < ceiling and self.holds(high + 1):
            high += 1
        return low, None if high >= ceiling else high


@dataclass(frozen=True, slots=True)
class Artifact:
    """A graph compiled at one size, with the guards under which torch reuses it.

    ``graph`` is the number of the graph in the model: a model with graph breaks has several.
    ``why`` is dynamo's reason for compiling again, empty for the first compile. ``unbound`` names
    symbolic sizes that do not follow from the dim; they are held at their sizes in this compile.
    """

    graph: int
    size: int
    guards: tuple[Guard, ...]
    why: str = ""
    unbound: tuple[str, ...] = ()

    def serves(self, size: int) -> bool:
        """Return whether every guard holds at *size*."""
        return all(guard.holds(size) for guard in self.guards)


def _last(holds: Callable[[int], bool], inside: int, outside: int) -> int:
    """Return the size nearest to *outside* at which *holds* is true; it is true at *inside*."""
    if holds(outside):
        return outside
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
