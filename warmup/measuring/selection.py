"""`select_winner`: from the outcomes of a trial to a winner.

Noise does not decide: all candidates within the near-tie band of the fastest count as equal, and
among equals a fixed order decides, the library default first. Two builds on one device therefore
select the same winner, or winners whose times differ by no more than noise explains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from warmup.core.roofline import Peaks, Work, gbps_of, share_of_peak, tflops_of
from warmup.core.rows import Evidence, Family, Flag, Method, Rejection, Row, Scope, Search, Winner
from warmup.core.trial import Outcome, Samples, Tuned, ranking_of

_FAMILIES: Final = (
    *(Family.EXTERN, Family.BLAS, Family.PAD, Family.WEIGHT, Family.CPP, Family.LAUNCH),
    *(Family.REDUCTION, Family.TEMPLATE),
)


# Candidates that differ in a launch config only run the same code on the same tensors.
NEAR_TIE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Selected:
    """The outcome of the winner, the near-tie band (a share of the fastest time), and flags."""

    outcome: Outcome
    band: float
    flags: tuple[Flag, ...] = ()


def select_winner(
    outcomes: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    is_disturbed: bool = False,
    prefers_fewer: bool = False,
) -> Selected | None:
    """Return the winner of *outcomes*; None when no outcome has a time.

    Within the near-tie band of the fastest, *library* wins, else the first in `fixed_order` of
    those that are `is_clearly_faster`; between *library* and algorithms of cuBLASLt the band is
    `NEAR_TIE`. Of a family those go last whose kernel takes more than twice as long to compile as
    another's: each start with empty caches pays for the winner's compile. With *prefers_fewer*
    another candidate within the band wins where its region launches fewer kernels, and no algorithm
    of cuBLASLt does. *library* wins with the flag `unstable` when the spread of the winner or of
    *library* exceeds the limit, unless the two never overlap; when the measurements were disturbed;
    and when *library* was rejected for a reason that noise can produce (without any time of
    *library* there is no winner then).
    """
    control = next((outcome for outcome in outcomes if outcome.winner == library), None)
    if control is not None and control.rejection is not None and control.rejection.may_be_noise:
        is_timed = control.samples is not None and control.is_final
        return Selected(control, method.near_tie, (Flag.UNSTABLE,)) if is_timed else None
    timed = [outcome for outcome in outcomes if outcome.time_us and outcome.is_final]
    if prefers_fewer and control in timed:  # an algorithm's call takes longer on the host
        timed = [outcome for outcome in timed if outcome.winner.family is not Family.BLAS]
    if not timed:
        return None
    control = control if control in timed else None
    fastest = min(timed, key=lambda outcome: (outcome.time_us, fixed_order(outcome.winner)))
    band = max(method.near_tie, _uncertainty(fastest.samples))
    narrowed = partial(_narrowed, band, fastest=fastest)
    equals = [one for one in timed if _time(one) <= _time(fastest) * (1 + narrowed(one, fastest))]
    able = [
        one
        for one in equals
        if control is None or is_clearly_faster(one, control, narrowed(one, control))
    ]
    flags = [Flag.NEAR_TIE] if len(equals) > 1 else []
    if able:
        limit_s = 2 * min(map(_compile_s, able))
        chosen = min(able, key=lambda one: _order(one.winner, _compile_s(one) > limit_s))
    else:
        assert control is not None
        chosen = control
        if control not in equals:  # what is faster is so by less than the times vary
            flags, band = [Flag.NEAR_TIE], max(band, _larger_spread(fastest, control))
    if prefers_fewer and (own := _kernels(chosen)) is not None:
        fewer = [one for one in able or equals if (_kernels(one) or own) < own]
        chosen = min(
            fewer, key=lambda one: (_kernels(one), *fixed_order(one.winner)), default=chosen
        )
    compared = [each.samples for each in (chosen, control) if each and each.samples]
    is_unstable = any(samples.spread > method.max_spread for samples in compared)
    if is_disturbed or (is_unstable and not _never_overlap(chosen, control)):
        flags.append(Flag.UNSTABLE)
        chosen = control or chosen
    return Selected(chosen, band, tuple(flags))


def _narrowed(band: float, one: Outcome, other: Outcome, fastest: Outcome) -> float:
    """Return *band*, or that of an algorithm of cuBLASLt beside the library's own choice."""
    # Both run without a compile, and a build measures the same two kernels again.
    families = {one.winner.family, other.winner.family}
    if Family.BLAS not in families or not families <= {Family.EXTERN, Family.BLAS}:
        return band
    return min(band, max(NEAR_TIE, _uncertainty(fastest.samples)))


def is_clearly_faster(one: Outcome, other: Outcome, band: float = 0.0) -> bool:
    """Return whether *one* is faster than *other* by more than *band* and than noise explains."""
    # The gain is larger than the spread of both, or each round of *one* was faster than each of
    # *other*.
    spread = _larger_spread(one, other)
    is_beyond = _time(other) > _time(one) * (1 + band)
    return is_beyond and (_time(other) > _time(one) * (1 + spread) or _never_overlap(one, other))


def fixed_order(winner: Winner) -> tuple[object, ...]:
    """Return the sort key among equals: family, fused (fewer kernels), tile size, uid, config."""
    return _order(winner)


def _order(winner: Winner, compiles_slowly: bool = False) -> tuple[object, ...]:  # noqa: FBT001, FBT002  one caller
    rank = _FAMILIES.index(winner.family) if winner.family in _FAMILIES else len(_FAMILIES)
    return rank, compiles_slowly, winner.fused is False, winner.tile, winner.uid, str(winner)


def _compile_s(outcome: Outcome) -> float:
    seconds = outcome.kernels.compile_s if outcome.kernels else None
    return math.inf if seconds is None else seconds


def _never_overlap(chosen: Outcome, control: Outcome | None) -> bool:
    if control is None or chosen.samples is None or control.samples is None:
        return False
    return max(chosen.samples.times_us) < min(control.samples.times_us)


def _larger_spread(*outcomes: Outcome) -> float:
    return max(one.samples.spread if one.samples else 0.0 for one in outcomes)


def _kernels(outcome: Outcome) -> int | None:
    return outcome.kernels.count if outcome.kernels else None


def _time(outcome: Outcome) -> float:
    return outcome.time_us or math.inf


def _uncertainty(samples: Samples | None) -> float:
    """Return half the width of the median's confidence interval, as a share of the median."""
    if samples is None:
        return 0.0
    low, high = samples.interval
    return (high - low) / 2 / samples.median


# `make_row`: the row of a key and its evidence, from the outcomes of a trial.

_EVIDENCE_DIGITS: Final = 3
_SLOWEST_SHARE: Final = 0.01  # of the peaks
_SLOW_US: Final = 100.0  # shorter times are mostly launch latency, which peaks do not cover


def make_row(
    key: str,
    outcomes: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    work: Work | None = None,
    peaks: Peaks | None = None,
    search: Search = Search.DEFAULT,
    winner: Winner | None = None,
    is_disturbed: bool = False,
    prefers_fewer: bool = False,
) -> Tuned | None:
    """Return the row for *key* with its evidence; None where `select_winner` selects none.

    The row is that of *winner*, which must have a time in *outcomes*, also where another is faster.
    """
    selected = select_winner(
        outcomes, library, method, is_disturbed=is_disturbed, prefers_fewer=prefers_fewer
    )
    if selected is not None and winner is not None:
        given = next(outcome for outcome in outcomes if outcome.winner == winner)
        selected = Selected(given, selected.band)
    if selected is None or selected.outcome.samples is None:
        return None
    chosen, samples = selected.outcome, selected.outcome.samples
    others = [each for each in outcomes if each.time_us and each.winner != chosen.winner]
    runner_up = min(others, key=lambda each: (each.time_us, fixed_order(each.winner)), default=None)
    control = next((outcome for outcome in outcomes if outcome.winner == library), None)
    # A refused library default has a time all the same: its row is flagged.
    library_us = samples.median if chosen is control else control.time_us if control else None
    rejected = Counter(outcome.rejection for outcome in outcomes if outcome.rejection)
    rates, doubts = _rates(work, peaks, samples.median)
    evidence = Evidence(
        **times_of(chosen),
        library_us=_rounded(library_us),
        runner_up=str(runner_up.winner) if runner_up else None,
        runner_up_us=_rounded(runner_up.time_us if runner_up else None),
        tried=len(outcomes),
        rejected=tuple(sorted(rejected.items())),
        band=round(selected.band, 4),
        **rates,
        clock_mhz=chosen.clock_mhz,
        flags=(*selected.flags, *doubts),
        search=search,
        bits=chosen.bits,
    )
    return Tuned(key, Row(chosen.winner, evidence), tuple(outcomes))


def make_fused_row(
    bare: Tuned,
    outcomes: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    work: Work | None = None,
    peaks: Peaks | None = None,
    is_disturbed: bool = False,
    prefers_fewer: bool = False,
) -> Tuned | None:
    """Return the row for the key of *bare*, won by *outcomes* of candidates within their region.

    A candidate has a timing for each way that was measured, and counts as rejected where every way
    was.
    """
    fused = make_row(
        *(bare.key, outcomes, library, method),
        is_disturbed=is_disturbed,
        prefers_fewer=prefers_fewer,
    )
    if fused is None:
        return None
    alone = {one.winner: one.time_us for one in bare.timings}
    bare_us = _rounded(alone.get(fused.row.winner.choice))
    variants: dict[Winner, list[Outcome]] = {}
    for one in outcomes:
        variants.setdefault(one.winner.choice, []).append(one)
    rejected = Counter(dict(bare.row.evidence.rejected))
    rejected.update(
        tried[0].rejection
        for tried in variants.values()
        if all(one.rejection is not None for one in tried) and tried[0].rejection is not None
    )
    kernels = {outcome.winner: outcome.kernels for outcome in outcomes}
    of_winner, of_library = kernels.get(fused.row.winner), kernels.get(library)
    rates, doubts = _rates(work, peaks, bare_us)
    evidence = replace(
        fused.row.evidence,
        scope=Scope.FUSED,
        bare_us=bare_us,
        tried=bare.row.evidence.tried,
        rejected=tuple(sorted(rejected.items())),
        **rates,
        clock_mhz=bare.row.evidence.clock_mhz,
        bits=bare.row.evidence.bits,
        flags=(*fused.row.evidence.flags, *doubts),
        search=bare.row.evidence.search,
        kernels=of_winner.count if of_winner else None,
        library_kernels=of_library.count if of_library else None,
        spills=of_winner.spills if of_winner else None,
        registers=of_winner.registers if of_winner else None,
        compile_s=of_winner.compile_s if of_winner else None,
    )
    timings = tuple(
        one if way is None else replace(one, winner=way.winner, fused=way)
        for one in bare.timings
        for way in variants.get(one.winner, [None])
    )
    return Tuned(bare.key, Row(fused.row.winner, evidence), timings)


def make_variants_row(
    key: str,
    outcomes: Sequence[Outcome],
    bare: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    is_disturbed: bool = False,
) -> Tuned | None:
    """Return the row for the pad decision *key*, won by *outcomes* in the compiled region.

    The times *bare* of inductor's own calls stay as evidence.
    """
    in_region = make_row(key, outcomes, library, method)
    if in_region is None:
        return None
    by_winner = {one.winner: one for one in bare}
    timings = tuple(by_winner.get(one.winner, Outcome(winner=one.winner)) for one in outcomes)
    evidence = replace(in_region.row.evidence, rejected=())  # `make_fused_row` adds its own
    alone = Tuned(key, replace(in_region.row, evidence=evidence), timings)
    fused = make_fused_row(alone, outcomes, library, method, is_disturbed=is_disturbed)
    if fused is None:
        return None
    evidence = replace(fused.row.evidence, bare_ranking=ranking_of(alone))
    return replace(fused, row=replace(fused.row, evidence=evidence))


def doubtful_us(floor_us: float) -> float:
    """Return the time above which a row is far below the peaks; *floor_us* is the time at peak."""
    return max(floor_us / _SLOWEST_SHARE, _SLOW_US)


def rejections(tuned: Iterable[Tuned]) -> Counter[Rejection]:
    """Return how many candidates were rejected in *tuned*, by reason."""
    counts: Counter[Rejection] = Counter()
    for each in tuned:
        counts.update(dict(each.row.evidence.rejected))
    return counts


def _rates(
    work: Work | None, peaks: Peaks | None, time_us: float | None
) -> tuple[dict[str, Any], tuple[Flag, ...]]:
    if work is None or not time_us:
        return {}, ()
    share = share_of_peak(peaks, work.dtype, work.flops, work.moved, time_us) if peaks else None
    is_slow = share is not None and share < _SLOWEST_SHARE and time_us > _SLOW_US
    flags = (Flag.OVER_PEAK,) if share and share > 1 else (Flag.FAR_BELOW_PEAK,) * is_slow
    rates = {
        "tflops": float(f"{tflops_of(work.flops, time_us):.4g}") if work.flops else None,
        "gbps": float(f"{gbps_of(work.moved, time_us):.4g}"),
        "peak_share": None if share is None else round(share, _EVIDENCE_DIGITS),
    }
    return rates, flags


def times_of(winner: Outcome) -> dict[str, Any]:
    """Return the times, the spread and the error of *winner* as fields of `Evidence`."""
    assert winner.samples is not None
    return {
        "time_us": _rounded(winner.samples.median),
        "spread": round(winner.samples.spread, 4),
        "error": None if winner.error is None else float(f"{winner.error:.3g}"),
    }


def _rounded(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us, _EVIDENCE_DIGITS)


# Regret: a winner's time over the best time, at several sizes of the key's range.

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
    winner: Winner,
    sizes: Sequence[SizeOutcomes],
    library: Winner,
    method: Method,
    barred: Collection[Winner] = (),
) -> Winner:
    """Return the winner for all *sizes*, the last of which is the size at which *winner* won.

    *winner* stays while its regret is at most `REGRET_BOUND` at every size, or the last size is
    unstable. Otherwise the candidate with the least worst regret wins; among near ties one within
    the bound, then *library*, then the first in the fixed order. Unstable sizes and times over the
    best that noise explains do not count. A candidate that failed or was not timed at a size cannot
    win, nor those *barred*.
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
    timed = [each.winner for each in own.outcomes if each.time_us and each.winner not in barred]
    ratios = {each: worst(each, math.inf) for each in timed}
    least = min(ratios.values(), default=math.inf)
    if least == math.inf:
        return winner
    equals = [each for each, ratio in ratios.items() if ratio <= least * (1 + method.near_tie)]
    return min(equals, key=lambda each: (ratios[each] > _LIMIT, each != library, fixed_order(each)))


def with_range_regret(
    tuned: Tuned, sizes: Sequence[SizeOutcomes], library: Winner, method: Method
) -> Tuned:
    """Return *tuned* with its winner's time over the best at each size; None where unstable."""
    winner = tuned.row.winner
    along = tuple(
        (each.size, None if _is_unstable(each, library, method) else _over_best(winner, each))
        for each in sizes
    )
    evidence = replace(tuned.row.evidence, along=along)
    return replace(
        tuned,
        row=replace(tuned.row, evidence=evidence),
        timings=tuple(_with_times(one, sizes) for one in tuned.timings),
    )


def is_within_bound(winner: Winner, tuned: Tuned) -> bool:
    """Return whether *winner* is within `REGRET_BOUND` of the best at the smaller sizes of *tuned*.

    Where the winner of *tuned* is above the bound at some size, no candidate is within it
    everywhere, and its worst ratio is the bound.
    """
    evidence = tuned.row.evidence
    over = worst_regret_over_bound(evidence)
    limit = _LIMIT if over is None else over[1]
    pairs = zip(evidence.along[:-1], ratios_of(winner, tuned)[:-1], strict=True)
    ratios = [ratio for (_, known), (_, ratio) in pairs if known is not None]
    return all(ratio is not None and ratio <= limit for ratio in ratios)


def with_bare_range_regret(bare: Tuned, fused: Tuned) -> Tuned:
    """Return *fused* with the ratios of its winner along the range, taken from *bare*."""
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


def _with_times(own: Outcome, sizes: Sequence[SizeOutcomes]) -> Outcome:
    outcomes = [(each.size, _outcome(own.winner, each)) for each in sizes[:-1]]
    along_us = ((size, _rounded(one.time_us)) for size, one in outcomes if one is not None)
    return replace(own, along_us=tuple(along_us))


def ratios_of(winner: Winner, tuned: Tuned) -> tuple[tuple[int, float | None], ...]:
    """Return the time of *winner* over the best at each size for which *tuned* has a ratio."""
    # Along a range candidates are timed alone, so that fused and not fused make no difference.
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
    """Return the time of *winner* over the best: 1 where noise may differ, infinite if failed."""
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
    own = times_us.get(winner)
    return round(own / min(filter(None, times_us.values())), _REGRET_DIGITS) if own else None


def _is_unstable(at: SizeOutcomes, library: Winner, method: Method) -> bool:
    selected = select_winner(at.outcomes, library, method)
    return selected is not None and Flag.UNSTABLE in selected.flags
