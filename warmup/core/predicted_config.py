"""`PredictedConfig`: a template's config that is predicted for a problem which nobody measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedConfig:
    """A template by its uid, its tuning kwargs, and what they are expected to gain.

    ``source_hash`` is that of the template that was measured, None where nobody noted it. Times are
    microseconds; ``gain`` is the library's time over the config's, ``bound`` its lower bound.
    """

    uid: str
    kwargs: tuple[tuple[str, int], ...]
    source_hash: str | None
    time_us: float
    library_us: float
    gain: float
    bound: float
