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
        """Something that no row covers is about to be measured on the device.

        Raises:
            UncoveredError: no such measurement may run.
        """

    def cached(self, decisions: int, misses: int) -> None:
        """A graph came whole from inductor's cache, compiled with *decisions*, *misses* of them.

        Raises:
            MissError: there were misses and serving is strict.
        """

    def contradicted(self, option: str, expected: str, found: str) -> None:
        """An inductor option of the caller's stands, and is not what the table's policy says."""

    def overruled(self, option: str, wanted: str, found: str) -> None:
        """An inductor option of the caller's that measures was replaced by the table's."""
