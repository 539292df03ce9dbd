"""`run_ways`: candidates compiled in their region with operations fused into them, and without.

Whether fusing pays depends on the kernel: fused operations need registers, and a kernel that has
too few spills them to memory. So the ways are candidates of their own, and both are timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from warmup.core.rows import Family, Winner
from warmup.core.trial import Candidate, Outcome, Trial
from warmup.measuring.trial_process import TrialResult

MAX_SPILLS: Final = 8  # inductor fuses no kernel that spills more (codegen/triton.py)


def run_ways(
    run: Callable[[Trial], TrialResult],
    trial: Trial,
    others: Sequence[Winner],
    may_win_alone: Iterable[Winner],
    most: int,
    *,
    fuses: bool = True,
) -> tuple[Outcome, ...]:
    """Return the outcomes in *trial* of its library's kernel and of the first *most* of *others*.

    Each of them has its ways (`ways_of`). Where fused kernels spill registers, up to *most* more
    that need fewer of them are timed fused.

    Raises:
        TrialNotRunError: the trial could not be run at all.
    """

    def outcomes_of(*winners: Winner) -> tuple[Outcome, ...]:
        candidates = tuple(map(Candidate, winners))
        return as_decided(run(replace(trial, candidates=candidates)).outcomes)

    ways = ways_of(others[:most], may_win_alone, fuses=fuses)
    outcomes = outcomes_of(trial.library, *ways)
    if more := less_demanding(others[most:], outcomes)[:most]:
        outcomes = outcomes_of(*(one.winner for one in outcomes), *ways_of(more))
    return outcomes


def ways_of(
    candidates: Iterable[Winner], may_win_alone: Iterable[Winner] = (), *, fuses: bool = True
) -> tuple[Winner, ...]:
    """Return each of *candidates* as it is compiled: a template fused, and not fused where it pays.

    A template that is not fused has the same kernels behind it as the library default, so it can
    win only if it is faster alone: those are in *may_win_alone*. Other candidates have one way.
    Without *fuses* no template is fused.
    """
    alone = frozenset(may_win_alone)
    ways: list[Winner] = []
    for candidate in candidates:
        if candidate.family is not Family.TEMPLATE:
            ways.append(candidate)
            continue
        if fuses:
            ways.append(replace(candidate, fused=True))
        if candidate in alone:
            ways.append(replace(candidate, fused=False))
    return tuple(ways)


def as_decided(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Return *outcomes* without ways that inductor could not compile as asked for.

    Where nothing can be fused into a template, there is no fused way.
    """
    return tuple(one for one in outcomes if one.kernels is None or one.kernels.is_as_decided)


def less_demanding(candidates: Sequence[Winner], outcomes: Iterable[Outcome]) -> list[Winner]:
    """Return those of *candidates* that hold less of the output in each thread than all that spill.

    A thread keeps its part of the output in registers while it accumulates. Empty where no fused
    kernel in *outcomes* spills more than inductor accepts.
    """
    spilling = [
        _output_per_warp(one.winner)
        for one in outcomes
        if one.kernels is not None and (one.kernels.spills or 0) > MAX_SPILLS
    ]
    if not spilling:
        return []
    return [one for one in candidates if _output_per_warp(one) < min(spilling)]


def _output_per_warp(winner: Winner) -> float:
    """Return the elements of the output that a warp computes; infinite where they are unknown."""
    kwargs = dict(winner.kwargs)
    sizes = [kwargs.get(name) for name in ("BLOCK_M", "BLOCK_N", "num_warps")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return math.inf
    rows, columns, warps = (int(size or 1) for size in sizes)
    return rows * columns / warps
