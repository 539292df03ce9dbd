"""`QuestionMeasurer`: what measures a question that no row of a table answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from warmup.core.live_search import LiveSearch
from warmup.core.rows import Tuned, Winner
from warmup.keys.question import Question, RegionQuestion


class QuestionMeasurer(Protocol):
    """Measures candidates when ``on_miss`` is ``tune``; `warmup.tuning.tuner.Tuner` does."""

    def measure(self, question: Question) -> Tuned | None:
        """Return the row for a GEMM selection; None when no candidate could be measured."""

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Tuned | None:
        """Time *calls* in this process and return the row; None when none could be measured."""

    def measure_search(self, key: str, search: LiveSearch) -> Tuned | None:
        """Time the calls of *search*, and those that it adds; None as above."""

    def try_search(self, key: str, search: LiveSearch) -> Winner | None:
        """Time *search* and return its winner, which makes no row; None as above."""

    def measure_region(self, question: RegionQuestion) -> Tuned | None:
        """Return the row for *question*; None when it is measured later, or could not be."""

    def close(self) -> None:
        """End the processes that were started to measure; closing twice is fine."""
