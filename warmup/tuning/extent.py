"""How far a build searches, and for how long."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import SettingsError
from warmup.core.method import Search

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_BUDGET: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smh]?)")


@dataclass(frozen=True, slots=True)
class Extent:
    """How far to search; with a budget in seconds only as long as there is time for it."""

    search: Search
    budget_s: float | None = None

    @property
    def first(self) -> Search:
        """How far every problem is searched."""
        return self.search if self.budget_s is None else Search.DEFAULT


def parse_extent(search: str, budget: str | float | None) -> Extent:
    """Return what ``--search`` and ``--budget`` spell: ``wide`` and ``20m``, or seconds.

    Raises:
        SettingsError: one is spelled otherwise, or there is a budget for no search.
    """
    if search not in set(Search):
        raise SettingsError(f"--search {search!r} is unknown", f"use one of {', '.join(Search)}")
    if budget is None:
        return Extent(Search(search))
    if search == Search.DEFAULT:
        raise SettingsError(
            f"--budget {budget} has nothing to be spent on", "add --search wide or exhaustive"
        )
    return Extent(Search(search), _seconds(budget))


def _seconds(budget: str | float) -> float:
    match = _BUDGET.fullmatch(budget.strip()) if isinstance(budget, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else budget
    if isinstance(seconds, str) or not 0 <= seconds < math.inf:
        raise SettingsError(f"--budget {budget!r} is no time", "write 90s, 20m or 2h")
    return seconds
