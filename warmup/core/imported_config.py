"""`ImportedConfig` and `PickedConfig`: what another tool chose, which nobody measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.rows import Winner

# Bounds of a time that is kept, in microseconds.
FASTEST_US: Final = 1e-6
SLOWEST_US: Final = 1e9
# Tuning kwargs of a template; all others follow from the operands. The highest value of each, and
# whether it is a power of two.
TUNED_KWARGS: Final[Mapping[str, tuple[int, bool]]] = {
    "BLOCK_M": (1024, True),
    "BLOCK_N": (1024, True),
    "BLOCK_K": (1024, True),
    "GROUP_M": (1024, False),
    "num_stages": (16, False),
    "num_warps": (32, True),
}


def wrong_kwarg(kwargs: Mapping[str, object]) -> str | None:
    """Return what is wrong with *kwargs*, those of a template that an imported config names.

    None where they are the `TUNED_KWARGS`, each with a value that a template takes.
    """
    for name, (most, is_power) in TUNED_KWARGS.items():
        value = kwargs.get(name)
        if type(value) is not int:
            return f"{name} is not given"
        if not 1 <= value <= most or (is_power and value & (value - 1)):
            return f"{name}={value} is no value that a template takes"
    others = kwargs.keys() - TUNED_KWARGS.keys()
    return f"{', '.join(sorted(others))}: no kwarg for tuning" if others else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedConfig:
    """A template by its uid and its tuning kwargs; other kwargs follow from the problem.

    ``source_hash`` is that of the template that was measured, None where nobody noted it.
    """

    uid: str
    kwargs: tuple[tuple[str, int], ...]
    source_hash: str | None


@dataclass(frozen=True, slots=True)
class ImportedConfig:
    """A choice that another tool made, and where it was read.

    ``winner`` of a template has the tuning kwargs alone; all others follow from the problem.
    ``origin`` is the file with the line or the entry. ``time_us`` and ``library_us`` are the times
    that the tool noted, on a device that nobody knows, None where it noted none.
    """

    winner: Winner
    origin: str
    time_us: float | None = None
    library_us: float | None = None

    @property
    def order(self) -> tuple[float, str, str]:
        """The sort key among configs of one problem: the fastest first, those without times last.

        Times of several tools are compared as they are, which is a guess.
        """
        time_us = float("inf") if self.time_us is None else self.time_us
        return time_us, str(self.winner), self.origin

    def names(self, candidate: Winner) -> bool:
        """Whether *candidate* has the uid of this config and all of its kwargs."""
        kwargs = dict(candidate.kwargs)
        return self.winner.uid == candidate.uid and all(
            kwargs.get(name, 0) == value for name, value in self.winner.kwargs
        )
