"""`PickedConfig`, `PredictedConfig` and `PredictedWinner`: answers for problems nobody measured."""

from __future__ import annotations

from dataclasses import dataclass

from warmup.core.rows import Winner


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWinner:
    """A whole winner that a device model predicts, such as whether to pad.

    ``gain`` is the mean of the time of default mode over that of the winner, ``bound`` the smallest
    such ratio, on the problems that the prediction was confirmed on. No time is predicted.
    """

    winner: Winner
    gain: float
    bound: float
