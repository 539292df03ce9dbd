"""Choosing: from what was measured to a row.

The fastest candidate does not win by noise: all within the near-tie band of it are equals, and
among equals the order is fixed, library default first. So two builds on one device agree, or differ
by no more than the band.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.method import Method, Search
from warmup.core.roofline import Peaks, gbps_of, share_of_peak, tflops_of
from warmup.core.rows import Evidence, Family, Flag, Rejection, Row, Scope, Timing, Tuned, Winner
from warmup.core.samples import Samples
from warmup.core.trial import Outcome

_FAMILIES: Final = (
    *(Family.EXTERN, Family.PAD, Family.WEIGHT, Family.CPP, Family.LAUNCH, Family.TEMPLATE),
)
_EVIDENCE_DIGITS: Final = 3
_SLOWEST_SHARE: Final = 0.01  # of the peaks
_SLOW_US: Final = 100.0  # shorter times are mostly launch latency, which no peak tells about


@dataclass(frozen=True, slots=True)
class Selected:
    """The winner among some outcomes, the band of near ties, and what is to be said about it."""

    outcome: Outcome
    band: float
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """What a problem asks for at least: operations (None where unknown) and bytes moved."""

    dtype: str
    flops: int | None
    moved: int


def choose(outcomes: Sequence[Outcome], library: Winner, method: Method) -> Selected | None:
    """Return the winner of *outcomes*; None when none of them has a time.

    Within the near-tie band of the fastest, *library* wins, else the first in a fixed order: the
    family, then the smallest config. When the winner's spread, or that of *library*, is above the
    limit, *library* wins and the verdict says `unstable`, unless the winner's slowest round was
    faster than the fastest of *library*.
    """
    timed = [outcome for outcome in outcomes if outcome.time_us and outcome.is_final]
    if not timed:
        return None
    fastest = min(timed, key=lambda outcome: (outcome.time_us, fixed_order(outcome.winner)))
    band = max(method.near_tie, _uncertainty(fastest.samples))
    limit = (fastest.time_us or math.inf) * (1 + band)
    equals = [outcome for outcome in timed if (outcome.time_us or math.inf) <= limit]
    chosen = min(equals, key=lambda one: (one.winner != library, fixed_order(one.winner)))
    control = next((outcome for outcome in timed if outcome.winner == library), None)
    flags: list[Flag] = []
    if len(equals) > 1:
        flags.append(Flag.NEAR_TIE)
    compared = [one.samples for one in (chosen, control) if one is not None and one.samples]
    shake = any(samples.spread > method.max_spread for samples in compared)
    if shake and not _are_apart(chosen, control):
        flags.append(Flag.UNSTABLE)
        chosen = control or chosen
    return Selected(chosen, band, tuple(flags))


def judge(
    key: str,
    outcomes: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    work: Work | None = None,
    peaks: Peaks | None = None,
    clock_mhz: int | None = None,
    search: Search = Search.DEFAULT,
    winner: Winner | None = None,
) -> Tuned | None:
    """Return the row for *key* with its evidence; None when no candidate has a time.

    With *winner*, one of *outcomes* that has a time, that is the row's, whoever is faster.
    """
    verdict = choose(outcomes, library, method)
    if verdict is not None and winner is not None:
        given = next(outcome for outcome in outcomes if outcome.winner == winner)
        verdict = Selected(given, verdict.band)
    if verdict is None or verdict.outcome.samples is None:
        return None
    chosen, samples = verdict.outcome, verdict.outcome.samples
    others = [one for one in outcomes if one.time_us and one.winner != chosen.winner]
    runner_up = min(others, key=lambda one: (one.time_us, fixed_order(one.winner)), default=None)
    control = next((one for one in outcomes if one.winner == library), None)
    rejected = Counter(one.rejection for one in outcomes if one.rejection)
    share = _share(work, peaks, samples)
    flags = (*verdict.flags, *_flags(share, samples))
    evidence = Evidence(
        time_us=_rounded(samples.median),
        library_us=_rounded_or_none(control.time_us if control else None),
        runner_up=str(runner_up.winner) if runner_up else None,
        runner_up_us=_rounded_or_none(runner_up.time_us if runner_up else None),
        tried=len(outcomes),
        rejected=tuple(sorted(rejected.items())),
        spread=round(samples.spread, 4),
        band=round(verdict.band, 4),
        error=None if chosen.error is None else float(f"{chosen.error:.3g}"),
        tflops=_rate(work, samples, tflops=True),
        gbps=_rate(work, samples, tflops=False),
        peak_share=None if share is None else round(share, _EVIDENCE_DIGITS),
        clock_mhz=clock_mhz,
        flags=flags,
        search=search,
    )
    timings = tuple(
        Timing(one.winner, _rounded_or_none(one.time_us), one.rejection, one.said)
        for one in outcomes
    )
    return Tuned(key, Row(chosen.winner, evidence), timings)


def judge_fused(
    bare: Tuned,
    outcomes: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    work: Work | None = None,
    peaks: Peaks | None = None,
) -> Tuned | None:
    """Return the row for the key of *bare*, chosen by *outcomes* of candidates as they will run.

    What was tried and rejected counts both times. None when no candidate has a time.
    """
    fused = judge(bare.key, outcomes, library, method)
    if fused is None:
        return None
    alone = {timing.winner: timing.time_us for timing in bare.timings}
    bare_us = alone.get(fused.row.winner)
    rejected = Counter(dict(bare.row.evidence.rejected))
    rejected.update(dict(fused.row.evidence.rejected))
    product = Samples((bare_us,)) if bare_us else None
    share = None if product is None else _share(work, peaks, product)
    evidence = replace(
        fused.row.evidence,
        scope=Scope.FUSED,
        bare_us=bare_us,
        tried=bare.row.evidence.tried,
        rejected=tuple(sorted(rejected.items())),
        tflops=None if product is None else _rate(work, product, tflops=True),
        gbps=None if product is None else _rate(work, product, tflops=False),
        peak_share=None if share is None else round(share, _EVIDENCE_DIGITS),
        clock_mhz=bare.row.evidence.clock_mhz,
        flags=(*fused.row.evidence.flags, *(_flags(share, product) if product else ())),
        search=bare.row.evidence.search,
    )
    seen = {timing.winner: timing for timing in fused.timings}
    timings = tuple(
        replace(
            timing,
            fused_us=seen[timing.winner].time_us,
            rejection=timing.rejection or seen[timing.winner].rejection,
            said=timing.said or seen[timing.winner].said,
        )
        if timing.winner in seen
        else timing
        for timing in bare.timings
    )
    return Tuned(bare.key, Row(fused.row.winner, evidence), timings)


def doubtful_us(floor_us: float) -> float:
    """Return the time from which on a row is flagged as far below the peaks, given their time."""
    return max(floor_us / _SLOWEST_SHARE, _SLOW_US)


def rejections(tuned: Iterable[Tuned]) -> Counter[Rejection]:
    """Return how many candidates were rejected in *tuned*, by reason."""
    found: Counter[Rejection] = Counter()
    for one in tuned:
        found.update(dict(one.row.evidence.rejected))
    return found


def _are_apart(chosen: Outcome, control: Outcome | None) -> bool:
    """Whether each round of *chosen* was faster than each of *control*."""
    if control is None or chosen.samples is None or control.samples is None:
        return False
    return max(chosen.samples.times_us) < min(control.samples.times_us)


def _uncertainty(samples: Samples | None) -> float:
    """Return half the width of the median's confidence interval, as a share of the median."""
    if samples is None:
        return 0.0
    low, high = samples.interval
    return (high - low) / 2 / samples.median


def fixed_order(winner: Winner) -> tuple[object, ...]:
    """Return the fixed order: family, then the smallest config, then its spelling."""
    rank = _FAMILIES.index(winner.family) if winner.family in _FAMILIES else len(_FAMILIES)
    return rank, winner.tile, winner.uid, str(winner)


def _share(work: Work | None, peaks: Peaks | None, samples: Samples) -> float | None:
    if work is None or peaks is None:
        return None
    return share_of_peak(peaks, work.dtype, work.flops, work.moved, samples.median)


def _rate(work: Work | None, samples: Samples, *, tflops: bool) -> float | None:
    if work is None or (tflops and not work.flops):
        return None
    if tflops:
        return float(f"{tflops_of(work.flops or 0, samples.median):.4g}")
    return float(f"{gbps_of(work.moved, samples.median):.4g}")


def _flags(share: float | None, samples: Samples) -> tuple[Flag, ...]:
    if share is None:
        return ()
    if share > 1:
        return (Flag.OVER_PEAK,)
    is_slow = share < _SLOWEST_SHARE and samples.median > _SLOW_US
    return (Flag.FAR_BELOW_PEAK,) if is_slow else ()


def _rounded(time_us: float) -> float:
    return round(time_us, _EVIDENCE_DIGITS)


def _rounded_or_none(time_us: float | None) -> float | None:
    return None if time_us is None else _rounded(time_us)
