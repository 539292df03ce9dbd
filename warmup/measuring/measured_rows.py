"""`make_row`: the row of a key and its evidence, from the outcomes of a trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from warmup.core.method import Method, Search
from warmup.core.roofline import Peaks, Work, gbps_of, share_of_peak, tflops_of
from warmup.core.rows import (
    Evidence,
    Flag,
    Rejection,
    Row,
    Scope,
    Timing,
    Tuned,
    Winner,
    ranking_of,
)
from warmup.core.samples import Samples
from warmup.core.trial import Outcome
from warmup.measuring.selection import Selected, fixed_order, select_winner

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
    clock_mhz: int | None = None,
    search: Search = Search.DEFAULT,
    winner: Winner | None = None,
    is_disturbed: bool = False,
) -> Tuned | None:
    """Return the row for *key* with its evidence; None where `select_winner` selects none.

    With *winner*, which must have a time in *outcomes*, the row is its row, even if another
    candidate is faster.
    """
    selected = select_winner(outcomes, library, method, is_disturbed=is_disturbed)
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
    share = _share(work, peaks, samples)
    flags = (*selected.flags, *_flags(share, samples))
    evidence = Evidence(
        time_us=_rounded(samples.median),
        library_us=_rounded_or_none(library_us),
        runner_up=str(runner_up.winner) if runner_up else None,
        runner_up_us=_rounded_or_none(runner_up.time_us if runner_up else None),
        tried=len(outcomes),
        rejected=tuple(sorted(rejected.items())),
        spread=round(samples.spread, 4),
        band=round(selected.band, 4),
        error=_short(chosen.error),
        tflops=_rate(work, samples, tflops=True),
        gbps=_rate(work, samples, tflops=False),
        peak_share=None if share is None else round(share, _EVIDENCE_DIGITS),
        clock_mhz=clock_mhz,
        flags=flags,
        search=search,
        host_us=_rounded_or_none(chosen.host_us),
        library_host_us=_rounded_or_none(control.host_us if control else None),
    )
    timings = tuple(
        Timing(
            each.winner,
            _rounded_or_none(each.time_us),
            each.rejection,
            each.said,
            host_us=_rounded_or_none(each.host_us),
            spread=None if each.samples is None else round(each.samples.spread, 4),
            error=_short(each.error),
        )
        for each in outcomes
    )
    return Tuned(key, Row(chosen.winner, evidence), timings)


def make_fused_row(
    bare: Tuned,
    outcomes: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    work: Work | None = None,
    peaks: Peaks | None = None,
    is_disturbed: bool = False,
) -> Tuned | None:
    """Return the row for the key of *bare*, won by *outcomes* of candidates within their region.

    A candidate may have two outcomes, fused and not fused, and then it has two timings. Candidates
    rejected in either measurement, every way, count as rejected. None when no outcome has a time.
    """
    fused = make_row(bare.key, outcomes, library, method, is_disturbed=is_disturbed)
    if fused is None:
        return None
    alone = {timing.winner: timing.time_us for timing in bare.timings}
    bare_us = alone.get(fused.row.winner.choice)
    ways: dict[Winner, list[Timing]] = {}
    for timing in fused.timings:
        ways.setdefault(timing.winner.choice, []).append(timing)
    rejected = Counter(dict(bare.row.evidence.rejected))
    rejected.update(
        tried[0].rejection
        for tried in ways.values()
        if all(timing.rejection is not None for timing in tried) and tried[0].rejection is not None
    )
    kernels = {outcome.winner: outcome.kernels for outcome in outcomes}
    of_winner, of_library = kernels.get(fused.row.winner), kernels.get(library)
    gemm = Samples((bare_us,)) if bare_us else None
    share = None if gemm is None else _share(work, peaks, gemm)
    evidence = replace(
        fused.row.evidence,
        scope=Scope.FUSED,
        bare_us=bare_us,
        tried=bare.row.evidence.tried,
        rejected=tuple(sorted(rejected.items())),
        tflops=None if gemm is None else _rate(work, gemm, tflops=True),
        gbps=None if gemm is None else _rate(work, gemm, tflops=False),
        peak_share=None if share is None else round(share, _EVIDENCE_DIGITS),
        clock_mhz=bare.row.evidence.clock_mhz,
        flags=(*fused.row.evidence.flags, *(_flags(share, gemm) if gemm else ())),
        search=bare.row.evidence.search,
        kernels=of_winner.count if of_winner else None,
        library_kernels=of_library.count if of_library else None,
        spills=of_winner.spills if of_winner else None,
        registers=of_winner.registers if of_winner else None,
    )
    timings = tuple(
        timing
        if way is None
        else replace(
            timing,
            winner=way.winner,
            fused_us=way.time_us,
            host_us=way.host_us,
            spread=way.spread,
            error=way.error,
            rejection=timing.rejection or way.rejection,
            said=timing.said or way.said,
        )
        for timing in bare.timings
        for way in ways.get(timing.winner, [None])
    )
    return Tuned(bare.key, Row(fused.row.winner, evidence), timings)


def make_ways_row(
    key: str,
    outcomes: Sequence[Outcome],
    bare: Sequence[Outcome],
    library: Winner,
    method: Method,
    *,
    clock_mhz: int | None = None,
    is_disturbed: bool = False,
) -> Tuned | None:
    """Return the row for the pad decision *key*, won by *outcomes* in the compiled region.

    The times *bare* of inductor's own calls stay as evidence. None when no outcome has a time.
    """
    in_region = make_row(key, outcomes, library, method)
    if in_region is None:
        return None
    times_us = {outcome.winner: outcome.time_us for outcome in bare}
    timings = tuple(
        Timing(timing.winner, _rounded_or_none(times_us.get(timing.winner)))
        for timing in in_region.timings
    )
    evidence = replace(in_region.row.evidence, rejected=())  # `make_fused_row` adds its own
    alone = Tuned(key, replace(in_region.row, evidence=evidence), timings)
    fused = make_fused_row(alone, outcomes, library, method, is_disturbed=is_disturbed)
    if fused is None:
        return None
    evidence = replace(fused.row.evidence, clock_mhz=clock_mhz, bare_ranking=ranking_of(alone))
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


def _short(error: float | None) -> float | None:
    return None if error is None else float(f"{error:.3g}")


def _rounded(time_us: float) -> float:
    return round(time_us, _EVIDENCE_DIGITS)


def _rounded_or_none(time_us: float | None) -> float | None:
    return None if time_us is None else _rounded(time_us)
