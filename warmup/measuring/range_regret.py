"""Regret: by how much a winner is slower than the best at the sizes of its range.

A row of a range is tuned at its largest size and serves all of them, so its winner is held against
the fastest others at the lower end of the range and in the middle as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.method import Method
from warmup.core.rows import Evidence, Flag, Rejection, Timing, Tuned, Winner
from warmup.core.trial import Outcome
from warmup.measuring.selection import choose, fixed_order

REGRET_BOUND: Final = 0.10
MOST_RIVALS: Final = 8
_LIMIT: Final = 1 + REGRET_BOUND
_REGRET_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class SizeOutcomes:
    """One size of a range, and what came of candidates there; of none where they were not run."""

    size: int
    outcomes: Sequence[Outcome]


def rivals_of(outcomes: Sequence[Outcome], winner: Winner, library: Winner) -> list[Winner]:
    """Return *winner*, *library* where it was run, and the `MOST_RIVALS` fastest of *outcomes*."""
    timed = [one for one in outcomes if one.time_us]
    ranked = sorted(timed, key=lambda one: (one.time_us, fixed_order(one.winner)))
    fastest = [one.winner for one in ranked[:MOST_RIVALS]]
    control = [one.winner for one in outcomes if one.winner == library]
    return [*dict.fromkeys((winner, *control, *fastest))]


def choose_along(
    winner: Winner, places: Sequence[SizeOutcomes], library: Winner, method: Method
) -> Winner:
    """Return the winner for all *places*, the last of which is the size that *winner* won at.

    It stays while its regret is at most `REGRET_BOUND` everywhere. Otherwise the candidate whose
    worst regret is least is taken; among near ties a candidate within the bound, then *library*,
    then the first in the fixed order. Sizes with unstable timings are ignored, and where the last
    size is unstable *winner* stays. A candidate that failed at a size, or was not timed there, is
    not taken.
    """
    own = places[-1]
    if _shakes(own, library, method):
        return winner
    steady = {place.size for place in places if not _shakes(place, library, method)}

    def worst(one: Winner, unknown: float) -> float:
        ratios = [(_ratio(one, place), place.size in steady) for place in places]
        known = [(unknown if ratio is None else ratio, counts) for ratio, counts in ratios]
        return max(ratio for ratio, counts in known if counts or ratio == math.inf)

    if worst(winner, 1.0) <= _LIMIT:
        return winner
    ratios = {one.winner: worst(one.winner, math.inf) for one in own.outcomes if one.time_us}
    least = min(ratios.values(), default=math.inf)
    if least == math.inf:
        return winner
    equals = [one for one, ratio in ratios.items() if ratio <= least * (1 + method.near_tie)]
    return min(equals, key=lambda one: (ratios[one] > _LIMIT, one != library, fixed_order(one)))


def with_places(
    tuned: Tuned, places: Sequence[SizeOutcomes], library: Winner, method: Method
) -> Tuned:
    """Return *tuned* with its time at each of *places*, over the best there.

    That is None where it was not timed, or the times of *library* or the fastest shook.
    """
    winner = tuned.row.winner
    along = tuple(
        (place.size, None if _shakes(place, library, method) else _over_best(winner, place))
        for place in places
    )
    evidence = replace(tuned.row.evidence, along=along)
    return replace(
        tuned,
        row=replace(tuned.row, evidence=evidence),
        timings=tuple(_with_times(timing, places) for timing in tuned.timings),
    )


def keeps_to_bound(winner: Winner, tuned: Tuned) -> bool:
    """Whether *winner* is within `REGRET_BOUND` of the best at the smaller sizes of *tuned*.

    Where it was not timed it is not. Every winner is where *tuned* tells of none.
    """
    told = zip(tuned.row.evidence.along[:-1], _along_of(winner, tuned)[:-1], strict=True)
    ratios = [ratio for (_, known), (_, ratio) in told if known is not None]
    return all(ratio is not None and ratio <= _LIMIT for ratio in ratios)


def with_along_of(bare: Tuned, fused: Tuned) -> Tuned:
    """Return *fused* with the times along its range, alone, of its winner, as *bare* tells them."""
    winner = fused.row.winner
    is_same = winner == bare.row.winner
    along = bare.row.evidence.along if is_same else _along_of(winner, bare)
    evidence = replace(fused.row.evidence, along=along)
    return replace(fused, row=replace(fused.row, evidence=evidence))


def over_bound(evidence: Evidence) -> tuple[int, float] | None:
    """Return the size of the worst regret and the time over the best there, if above the bound."""
    known = [(size, ratio) for size, ratio in evidence.along if ratio is not None]
    size, ratio = max(known, key=lambda one: one[1], default=(0, 0.0))
    return (size, ratio) if ratio > _LIMIT else None


def _with_times(timing: Timing, places: Sequence[SizeOutcomes]) -> Timing:
    found = [(place.size, _outcome(timing.winner, place)) for place in places[:-1]]
    return replace(
        timing,
        along_us=tuple(
            (size, None if one.time_us is None else round(one.time_us, _REGRET_DIGITS))
            for size, one in found
            if one is not None
        ),
    )


def _along_of(winner: Winner, tuned: Tuned) -> tuple[tuple[int, float | None], ...]:
    """Return the time of *winner* over the best at each size that *tuned* has a ratio for."""
    along, timings = tuned.row.evidence.along, tuned.timings
    if not along:
        return ()
    below = [
        {one.winner: dict(one.along_us).get(size) for one in timings} for size, _ in along[:-1]
    ]
    own = {one.winner: one.time_us for one in timings}
    return tuple(
        (size, None if known is None else _over(winner, times))
        for (size, known), times in zip(along, (*below, own), strict=True)
    )


def _outcome(winner: Winner, place: SizeOutcomes) -> Outcome | None:
    return next((one for one in place.outcomes if one.winner == winner), None)


def _ratio(winner: Winner, place: SizeOutcomes) -> float | None:
    """Return the time of *winner* over the best: infinite if it failed, None if not timed."""
    outcome = _outcome(winner, place)
    rejection = None if outcome is None else outcome.rejection
    # A time that cannot be true says nothing about the kernel.
    failed = rejection is not None and rejection is not Rejection.IMPLAUSIBLE
    return math.inf if failed else _over_best(winner, place)


def _over_best(winner: Winner, place: SizeOutcomes) -> float | None:
    return _over(winner, {one.winner: one.time_us for one in place.outcomes})


def _over(winner: Winner, times_us: Mapping[Winner, float | None]) -> float | None:
    """Return the time of *winner* over the least; None where it has none."""
    own = times_us.get(winner)
    return round(own / min(filter(None, times_us.values())), _REGRET_DIGITS) if own else None


def _shakes(place: SizeOutcomes, library: Winner, method: Method) -> bool:
    verdict = choose(place.outcomes, library, method)
    return verdict is not None and Flag.UNSTABLE in verdict.flags
