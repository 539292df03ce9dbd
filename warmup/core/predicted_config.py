"""`PickedConfig` and `PredictedConfig`: a template's config for a problem that nobody measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedConfig:
    """A template by its uid and its tuning kwargs; other kwargs follow from the problem.

    ``source_hash`` is that of the template that was measured, None where nobody noted it.
    """

    uid: str
    kwargs: tuple[tuple[str, int], ...]
    source_hash: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedConfig(PickedConfig):
    """A config that a device model predicts, and what it is expected to gain.

    Times are microseconds; ``gain`` is the library's time over the config's, ``bound`` its lower
    bound.
    """

    time_us: float
    library_us: float
    gain: float
    bound: float
