"""`select_winner`: from the outcomes of a trial to a winner.

Noise does not decide: all candidates within the near-tie band of the fastest count as equal, and
among equals a fixed order decides, the library default first. A candidate replaces the library
default only where its gain is larger than the band and than the spread of both. Two builds on one
device therefore select the same winner, or winners whose times differ by no more than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.method import Method
from warmup.core.rows import Family, Flag, Winner
from warmup.core.samples import Samples
from warmup.core.trial import Outcome

_FAMILIES: Final = (
    *(Family.EXTERN, Family.PAD, Family.WEIGHT, Family.CPP, Family.LAUNCH, Family.REDUCTION),
    Family.TEMPLATE,
)


@dataclass(frozen=True, slots=True)
class Selected:
    """The outcome of the winner, the near-tie band (a share of the fastest time), and flags."""

    outcome: Outcome
    band: float
    flags: tuple[Flag, ...] = ()


def select_winner(
    outcomes: Sequence[Outcome], library: Winner, method: Method, *, is_disturbed: bool = False
) -> Selected | None:
    """Return the winner of *outcomes*; None when no outcome has a time.

    Within the near-tie band of the fastest, *library* wins, else the first in `fixed_order` of
    those whose gain over *library* is no noise (`is_clearly_faster`). *library* wins with the flag
    `unstable` when the spread of the winner or of *library* exceeds the limit, unless the winner's
    slowest round was faster than the fastest round of *library*; when the measurements were
    disturbed; and when *library* was rejected for a reason that noise can produce. Without any time
    of *library* there is no winner in the last case.
    """
    control = next((outcome for outcome in outcomes if outcome.winner == library), None)
    if control is not None and control.rejection is not None and control.rejection.may_be_noise:
        is_timed = control.samples is not None and control.is_final
        return Selected(control, method.near_tie, (Flag.UNSTABLE,)) if is_timed else None
    timed = [outcome for outcome in outcomes if outcome.time_us and outcome.is_final]
    if not timed:
        return None
    control = control if control in timed else None
    fastest = min(timed, key=lambda outcome: (outcome.time_us, fixed_order(outcome.winner)))
    band = max(method.near_tie, _uncertainty(fastest.samples))
    equals = [one for one in timed if _time(one) <= _time(fastest) * (1 + band)]
    able = [one for one in equals if control is None or is_clearly_faster(one, control, band)]
    flags = [Flag.NEAR_TIE] if len(equals) > 1 else []
    if able:
        chosen = min(able, key=lambda each: fixed_order(each.winner))
    else:
        assert control is not None
        chosen = control
        if control not in equals:  # what is faster is so by less than the times vary
            flags, band = [Flag.NEAR_TIE], max(band, _larger_spread(fastest, control))
    compared = [each.samples for each in (chosen, control) if each and each.samples]
    is_unstable = any(samples.spread > method.max_spread for samples in compared)
    if is_disturbed or (is_unstable and not _never_overlap(chosen, control)):
        flags.append(Flag.UNSTABLE)
        chosen = control or chosen
    return Selected(chosen, band, tuple(flags))


def is_clearly_faster(one: Outcome, other: Outcome, band: float = 0.0) -> bool:
    """Return whether *one* is faster than *other* by more than *band* and than noise explains.

    The gain, as a share of the time of *one*, is larger than the spread of both, or each round of
    *one* was faster than each round of *other*.
    """
    spread = _larger_spread(one, other)
    is_beyond = _time(other) > _time(one) * (1 + band)
    return is_beyond and (_time(other) > _time(one) * (1 + spread) or _never_overlap(one, other))


def fixed_order(winner: Winner) -> tuple[object, ...]:
    """Return the sort key that decides among equals.

    Family, fused before not fused (fewer kernels), tile size, uid, text of the config.
    """
    rank = _FAMILIES.index(winner.family) if winner.family in _FAMILIES else len(_FAMILIES)
    return rank, winner.fused is False, winner.tile, winner.uid, str(winner)


def _never_overlap(chosen: Outcome, control: Outcome | None) -> bool:
    """Whether each round of *chosen* was faster than each of *control*."""
    if control is None or chosen.samples is None or control.samples is None:
        return False
    return max(chosen.samples.times_us) < min(control.samples.times_us)


def _larger_spread(*outcomes: Outcome) -> float:
    return max(one.samples.spread if one.samples else 0.0 for one in outcomes)


def _time(outcome: Outcome) -> float:
    return outcome.time_us or math.inf


def _uncertainty(samples: Samples | None) -> float:
    """Return half the width of the median's confidence interval, as a share of the median."""
    if samples is None:
        return 0.0
    low, high = samples.interval
    return (high - low) / 2 / samples.median
