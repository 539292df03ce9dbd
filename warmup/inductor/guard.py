"""Guards on a size: the sizes at which a compiled artifact is valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NO_END: Final = 2**62  # a guard that holds here holds at every larger size


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of source; files of torch are named from ``torch/`` on."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Guard:
    """What a size must meet for an artifact to serve it, and where torch asked.

    ``is_linear`` says that the sizes at which it holds are one interval, so that its ends can be
    bisected. ``is_default`` marks what torch puts on every dynamic size before it sees the model;
    ``is_fixed`` one size and no other. ``code`` is the line at ``user``, where the model stood.
    """

    expression: str
    holds: Callable[[int], bool]
    is_linear: bool
    place: SourceLine | None
    user: SourceLine | None = None
    is_default: bool = False
    is_fixed: bool = False

    def extent(self, size: int, ceiling: int) -> tuple[int, int | None]:
        """Return the ends of the interval around *size* on which this holds; None for no end.

        Of a guard that is not linear, the interval is looked for up to *ceiling*, size by size.
        """
        if not self.is_linear:
            return self._scan(size, ceiling)
        low = _last(self.holds, size, 0)
        return low, None if self.holds(NO_END) else _last(self.holds, size, NO_END)

    def recurs(self, size: int, ceiling: int) -> bool:
        """Return whether this holds again at a size up to *ceiling* outside that interval."""
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
    """One graph compiled at one size, with the guards under which torch uses it again.

    ``graph`` numbers the graphs of a model, which has several where it breaks; ``why`` is what
    dynamo says made it compile again, empty for the first. ``unbound`` are symbolic sizes that do
    not follow from the dim, taken as they were.
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
    """Return the size nearest to *outside* at which *holds*, which is true up to there."""
    if holds(outside):
        return outside
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
