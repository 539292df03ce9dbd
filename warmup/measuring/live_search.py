"""`time_search`: checks and times candidates that are made while others are timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from warmup.core.dtypes import dtype_name
from warmup.core.live_search import LiveSearch
from warmup.core.method import Method
from warmup.core.rows import Rejection, Winner
from warmup.core.trial import Outcome
from warmup.measuring.reference import NARROW_TOLERANCE, judge_like
from warmup.measuring.screening import CandidateRun, Screening

# Candidates that differ in a launch config only run the same code on the same tensors.
NEAR_TIE: Final = 0.01


def time_search(
    search: LiveSearch,
    device: torch.device,
    method: Method,
    tolerance: Mapping[str, float],
    floor_us: float | None = None,
) -> tuple[list[Outcome], Winner]:
    """Return the outcomes of all candidates of *search*, and the control.

    The control is what default mode would take: the fastest of the candidates that it lists, and of
    those within the near-tie band of *method* the first. What a candidate writes is compared with
    what the first listed candidate that runs wrote, within the *tolerance* of the dtype; a
    candidate that differs is rejected before it is timed. So is, after it was timed, a candidate
    that takes less than *floor_us* by more than peaks may be wrong.
    """
    screening = Screening([], search.listed[0], device, method)
    written = _Written(search, tolerance)
    calls = search.calls
    while calls:
        runs = [CandidateRun(winner, call) for winner, call in calls.items()]
        screening.runs += runs
        for run in runs:
            screening.attempt(run, "check", written.compare)
        screening.screen(runs)
        _reject_implausible(runs, floor_us)
        calls = search.more(
            {run.winner: run.time_us if run.is_open else math.inf for run in screening.runs}
        )
    library = screening.choose_control(search.listed, method.near_tie)
    screening.time_finalists()
    _reject_implausible(screening.runs, floor_us)
    uncompiled = (
        Outcome(winner=winner, rejection=Rejection.COMPILE, said=reason)
        for winner, reason in search.uncompiled.items()
    )
    return [*(run.outcome for run in screening.runs), *uncompiled], library


def _reject_implausible(runs: Sequence[CandidateRun], floor_us: float | None) -> None:
    """Reject those of *runs* whose time the measured peaks do not allow."""
    for run in runs:
        if floor_us is not None and run.is_open:
            run.reject_over_peak(run.time_us, floor_us)


def with_narrow_band(method: Method) -> Method:
    """Return *method* with the near-tie band of candidates that differ in a launch config only."""
    return replace(method, near_tie=min(method.near_tie, NEAR_TIE))


class _Written:
    """Compares what candidates write with what the first of them wrote."""

    def __init__(self, search: LiveSearch, tolerance: Mapping[str, float]) -> None:
        self._search, self._tolerance = search, {**NARROW_TOLERANCE, **tolerance}
        self._expected: Sequence[torch.Tensor] | None = None

    def compare(self, run: CandidateRun) -> None:
        outputs: Sequence[torch.Tensor] = self._search.written(run.winner)
        if outputs and outputs[0].device.type != "cpu":
            torch.cuda.synchronize(outputs[0].device)
        if self._expected is None:
            self._expected = outputs
            return
        for out, expected in zip(outputs, self._expected, strict=True):
            limit = self._tolerance.get(dtype_name(out.dtype))
            error, rejection, message = judge_like(out, expected, limit)
            run.outcome = replace(run.outcome, error=max(error, run.outcome.error or 0.0))
            if rejection is not None:
                run.reject(rejection, message)
                return
