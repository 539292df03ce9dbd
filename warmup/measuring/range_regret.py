"""Regret: a winner's time over the best time, at several sizes of the key's range.

A row whose key has a range is tuned at the largest size and serves every size, so its winner is
also compared with its fastest rivals at the lower end and in the middle of the range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.method import Method
from warmup.core.rows import Evidence, Flag, Rejection, Timing, Tuned, Winner
from warmup.core.trial import Outcome
from warmup.measuring.selection import fixed_order, is_clearly_faster, select_winner

REGRET_BOUND: Final = 0.10
MOST_RIVALS: Final = 8  # candidates timed again at the smaller sizes
_LIMIT: Final = 1 + REGRET_BOUND
_REGRET_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class SizeOutcomes:
    """A size of a range and the outcomes of candidates there; empty when nothing was run."""

    size: int
    outcomes: Sequence[Outcome]


def rivals_of(outcomes: Sequence[Outcome], winner: Winner, library: Winner) -> list[Winner]:
    """Return *winner*, *library* if it was run, and the `MOST_RIVALS` fastest of *outcomes*."""
    timed = [outcome for outcome in outcomes if outcome.time_us]
    ranked = sorted(timed, key=lambda outcome: (outcome.time_us, fixed_order(outcome.winner)))
    fastest = [outcome.winner for outcome in ranked[:MOST_RIVALS]]
    control = [outcome.winner for outcome in outcomes if outcome.winner == library]
    return [*dict.fromkeys((winner, *control, *fastest))]


def select_for_range(
    winner: Winner, sizes: Sequence[SizeOutcomes], library: Winner, method: Method
) -> Winner:
    """Return the winner for all *sizes*, the last of which is the size at which *winner* won.

    *winner* stays while its regret is at most `REGRET_BOUND` at every size. Otherwise the candidate
    with the least worst regret wins; among near ties a candidate within the bound, then *library*,
    then the first in the fixed order. Sizes with unstable timings are ignored; if the last size is
    unstable, *winner* stays. A time over the best one counts only where it is no noise
    (`is_clearly_faster`). A candidate that failed or was not timed at some size cannot win.
    """
    own = sizes[-1]
    if _is_unstable(own, library, method):
        return winner
    stable = {each.size for each in sizes if not _is_unstable(each, library, method)}

    def worst(candidate: Winner, unknown: float) -> float:
        ratios = [(_ratio(candidate, each), each.size in stable) for each in sizes]
        known = [(unknown if ratio is None else ratio, counts) for ratio, counts in ratios]
        return max(ratio for ratio, counts in known if counts or ratio == math.inf)

    if worst(winner, 1.0) <= _LIMIT:
        return winner
    ratios = {each.winner: worst(each.winner, math.inf) for each in own.outcomes if each.time_us}
    least = min(ratios.values(), default=math.inf)
    if least == math.inf:
        return winner
    equals = [each for each, ratio in ratios.items() if ratio <= least * (1 + method.near_tie)]
    return min(equals, key=lambda each: (ratios[each] > _LIMIT, each != library, fixed_order(each)))


def with_range_regret(
    tuned: Tuned, sizes: Sequence[SizeOutcomes], library: Winner, method: Method
) -> Tuned:
    """Return *tuned* with its winner's time over the best time at each of *sizes*.

    The ratio is None at a size where the winner was not timed or the timings are unstable.
    """
    winner = tuned.row.winner
    along = tuple(
        (each.size, None if _is_unstable(each, library, method) else _over_best(winner, each))
        for each in sizes
    )
    evidence = replace(tuned.row.evidence, along=along)
    return replace(
        tuned,
        row=replace(tuned.row, evidence=evidence),
        timings=tuple(_with_times(timing, sizes) for timing in tuned.timings),
    )


def is_within_bound(winner: Winner, tuned: Tuned) -> bool:
    """Return whether *winner* is within `REGRET_BOUND` of the best at the smaller sizes of *tuned*.

    Where the winner of *tuned* is above the bound at some size, no candidate is within it
    everywhere, and its worst ratio is the bound. False if *winner* was not timed at one of the
    smaller sizes; True if *tuned* has none.
    """
    evidence = tuned.row.evidence
    over = worst_regret_over_bound(evidence)
    limit = _LIMIT if over is None else over[1]
    pairs = zip(evidence.along[:-1], ratios_of(winner, tuned)[:-1], strict=True)
    ratios = [ratio for (_, known), (_, ratio) in pairs if known is not None]
    return all(ratio is not None and ratio <= limit for ratio in ratios)


def with_bare_range_regret(bare: Tuned, fused: Tuned) -> Tuned:
    """Return *fused* with the ratios of its winner at the sizes of the range, taken from *bare*."""
    winner = fused.row.winner
    is_same = winner.choice == bare.row.winner
    along = bare.row.evidence.along if is_same else ratios_of(winner, bare)
    evidence = replace(fused.row.evidence, along=along)
    return replace(fused, row=replace(fused.row, evidence=evidence))


def worst_regret_over_bound(evidence: Evidence) -> tuple[int, float] | None:
    """Return the size with the worst ratio and that ratio; None if it is within the bound."""
    known = [(size, ratio) for size, ratio in evidence.along if ratio is not None]
    size, ratio = max(known, key=lambda pair: pair[1], default=(0, 0.0))
    return (size, ratio) if ratio > _LIMIT else None


def _with_times(timing: Timing, sizes: Sequence[SizeOutcomes]) -> Timing:
    outcomes = [(each.size, _outcome(timing.winner, each)) for each in sizes[:-1]]
    return replace(
        timing,
        along_us=tuple(
            (size, None if outcome.time_us is None else round(outcome.time_us, _REGRET_DIGITS))
            for size, outcome in outcomes
            if outcome is not None
        ),
    )


def ratios_of(winner: Winner, tuned: Tuned) -> tuple[tuple[int, float | None], ...]:
    """Return the time of *winner* over the best at each size for which *tuned* has a ratio.

    Along a range candidates are timed alone, so that fused and not fused make no difference.
    """
    along, timings = tuned.row.evidence.along, tuned.timings
    if not along:
        return ()
    smaller = [
        {timing.winner.choice: dict(timing.along_us).get(size) for timing in timings}
        for size, _ in along[:-1]
    ]
    own = {timing.winner.choice: timing.time_us for timing in timings}
    return tuple(
        (size, None if known is None else _over(winner.choice, times))
        for (size, known), times in zip(along, (*smaller, own), strict=True)
    )


def _outcome(winner: Winner, at: SizeOutcomes) -> Outcome | None:
    return next((outcome for outcome in at.outcomes if outcome.winner == winner), None)


def _ratio(winner: Winner, at: SizeOutcomes) -> float | None:
    """Return the time of *winner* over the best, 1 where noise may be the difference.

    Infinite if it failed, None if not timed.
    """
    outcome = _outcome(winner, at)
    rejection = None if outcome is None else outcome.rejection
    # An implausible time does not mean that the kernel is wrong.
    failed = rejection is not None and rejection is not Rejection.IMPLAUSIBLE
    if failed or outcome is None or not outcome.time_us:
        return math.inf if failed else None
    best = min((one for one in at.outcomes if one.time_us), key=lambda one: one.time_us or math.inf)
    return _over_best(winner, at) if is_clearly_faster(best, outcome) else 1.0


def _over_best(winner: Winner, at: SizeOutcomes) -> float | None:
    return _over(winner, {outcome.winner: outcome.time_us for outcome in at.outcomes})


def _over(winner: Winner, times_us: Mapping[Winner, float | None]) -> float | None:
    """Return the time of *winner* over the least time; None without a time of *winner*."""
    own = times_us.get(winner)
    return round(own / min(filter(None, times_us.values())), _REGRET_DIGITS) if own else None


def _is_unstable(at: SizeOutcomes, library: Winner, method: Method) -> bool:
    selected = select_winner(at.outcomes, library, method)
    return selected is not None and Flag.UNSTABLE in selected.flags
