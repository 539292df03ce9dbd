"""`OnMiss` and `Uncovered`: what a `Lookup` does where no row answers."""

from __future__ import annotations

from enum import StrEnum


class OnMiss(StrEnum):
    """What `Lookup` does when no row answers."""

    FALLBACK = "fallback"
    STRICT = "strict"
    TUNE = "tune"


class Uncovered(StrEnum):
    """What `Lookup` does when inductor is about to measure something that no row kind covers."""

    COUNT = "count"
    FORBID = "forbid"
