"""`ImportedConfig`: a kernel that another tool chose for a problem, which nobody measured here."""

from __future__ import annotations

from dataclasses import dataclass

from warmup.core.rows import Winner


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
