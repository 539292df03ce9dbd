"""What inductor asks of the rest of warmup, in warmup's words. No torch here."""

from __future__ import annotations

from typing import Protocol

from warmup.choice import MissReason, Tuned, Winner


class Answers(Protocol):
    """Who answers inductor's questions while attached. Called from any thread."""

    @property
    def tunes(self) -> bool:
        """True when a question without a row is to be benchmarked and reported to `tuned`."""

    def find(self, key: str) -> Winner | MissReason:
        """Return the winner for a GEMM key, or why there is none. Emits nothing."""

    def hit(self, key: str, winner: Winner) -> None:
        """A row's choice survived into the compiled code."""

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        """No row answered and *fallback* is compiled instead.

        Raises:
            MissError: serving is strict.
        """

    def tuned(self, result: Tuned) -> None:
        """A question was benchmarked (only when `tunes`)."""

    def uncovered(self, site: str) -> None:
        """Something was benchmarked that no row kind covers."""

    def cached(self, decisions: int) -> None:
        """A graph came whole from inductor's cache; compiling it had taken *decisions* lookups."""

    def contradicted(self, option: str, expected: str, found: str) -> None:
        """An inductor option is not what the table's policy says."""
