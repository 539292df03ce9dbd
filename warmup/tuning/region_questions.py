"""`RegionQuestions`: decisions that a compile asked for, until their regions are measured.

Whether a GEMM is padded, and into how many parts a reduction is split. Inductor asks while it
compiles, and cannot compile a region then. So a build answers as default mode does, measures when
the compile is over (`warmup.tuning.region_ways`), and compiles again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from warmup.core.trial import Outcome
from warmup.keys.question import RegionQuestion


@dataclass(frozen=True, slots=True)
class WaitingQuestion:
    """A question with its region, and the outcomes of inductor's own calls, if there are any."""

    question: RegionQuestion
    bare: Sequence[Outcome]
    is_disturbed: bool


@dataclass
class RegionQuestions:
    """The questions that wait, by key, in the order in which they were asked.

    ``asked`` has the keys that were kept since the last `forget`: none is kept twice. Only where
    somebody compiles again, which ``is_used`` says, are questions kept at all.
    """

    is_used: bool = False
    waiting: dict[str, WaitingQuestion] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    _is_measuring: bool = False

    def is_open_to(self, key: str) -> bool:
        """Whether *key* is still to be kept: not twice, and not out of a region."""
        return not self._is_measuring and key not in self.asked

    def keep(self, waiting: WaitingQuestion) -> None:
        """Let *waiting* wait for its measurement."""
        self.asked.add(waiting.question.key)
        self.waiting[waiting.question.key] = waiting

    def forget(self) -> None:
        """Drop what waits, and allow every key again."""
        self.waiting.clear()
        self.asked.clear()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[list[WaitingQuestion]]:
        """Take what waits; until the context closes nothing is kept.

        A region may ask about other GEMMs in it: the model asks about them too.
        """
        taken = list(self.waiting.values())
        self.waiting.clear()
        self._is_measuring = True
        try:
            yield taken
        finally:
            self._is_measuring = False
