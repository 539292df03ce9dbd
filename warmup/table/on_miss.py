"""`OnMiss` and `Uncovered`: what a `Lookup` does where no row answers."""

from __future__ import annotations

from enum import StrEnum


class OnMiss(StrEnum):
    """What `Lookup` does when no row answers."""

    FALLBACK = "fallback"
    STRICT = "strict"
    TUNE = "tune"


class Uncovered(StrEnum):
    """What `Lookup` does where inductor would measure something that no row kind covers."""

    LIBRARY = "library"
    MEASURE = "measure"
    FORBID = "forbid"
