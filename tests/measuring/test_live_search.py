"""Searches in this process: candidates that are made while others are checked and timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from warmup.core.roofline import dtype_name
from warmup.core.rows import (
    L2,
    CandidateSource,
    Family,
    Method,
    Rejection,
    Search,
    SearchCounts,
    Winner,
)
from warmup.core.trial import LiveSearch, Outcome
from warmup.measuring.reference import NARROW_TOLERANCE, judge_like
from warmup.measuring.selection import make_row
from warmup.measuring.trial import time_search, with_narrow_band

CPU = torch.device("cpu")
METHOD = Method(l2=L2.WARM)
RIGHT = torch.arange(8.0) + 1
NAN, INF = math.nan, math.inf


def winner(name: str) -> Winner:
    return Winner(Family.LAUNCH, name)


@dataclass(frozen=True)
class Call:
    """A call with the name by which the clock knows it."""

    uid: str

    def __call__(self, _number: int) -> None:
        """Do nothing: the clock states the time."""


@dataclass
class Kernel:
    """A search of ``waves`` of names; the first wave is listed. ``writes`` has other outputs."""

    waves: Sequence[Sequence[str]]
    writes: Mapping[str, Any] = field(default_factory=dict)
    uncompiled: dict[Winner, str] = field(default_factory=dict)
    told: list[dict[str, float]] = field(default_factory=list)

    def search(self) -> LiveSearch:
        waves = [{winner(name): Call(name) for name in names} for names in self.waves]
        listed, later = waves[0], iter(waves[1:])

        def more(times_us: Mapping[Winner, float]) -> Mapping[Winner, Callable[[int], object]]:
            self.told.append({one.uid: time for one, time in times_us.items()})
            return next(later, {})

        def written(one: Winner) -> list[torch.Tensor]:
            out = self.writes.get(one.uid, RIGHT)
            if isinstance(out, Exception):
                raise out
            return [out.clone()]

        def counts() -> SearchCounts:
            added = sum(map(len, waves[1:]))
            sources = ((CandidateSource.GRID, added),)
            return SearchCounts(search=Search.DEFAULT, listed=len(listed), added=sources)

        return LiveSearch(tuple(listed), listed, more, written, self.uncompiled, counts)

    def run(
        self, method: Method = METHOD, floor_us: float | None = None
    ) -> tuple[dict[str, Outcome], str]:
        """Return the outcomes by name, and the name of the control."""
        outcomes, control = time_search(self.search(), CPU, method, {"f32": 1e-3}, floor_us)
        return {one.winner.uid: one for one in outcomes}, control.uid


def test_a_candidate_that_is_made_later_can_win(fake_clock: Any) -> None:
    """The fastest of all waves wins, and each wave is told the times of all before it."""
    fake_clock.times = {"a": 9.0, "b": 8.0, "c": 5.0, "d": 6.0}
    kernel = Kernel([["a", "b"], ["c"], ["d"]])
    outcomes, control = kernel.run()
    row = make_row("launch x", [*outcomes.values()], winner(control), METHOD)
    assert row is not None
    assert row.row.winner.uid == "c"
    assert [sorted(told) for told in kernel.told] == [
        ["a", "b"],
        ["a", "b", "c"],
        ["a", "b", "c", "d"],
    ]
    assert kernel.told[-1] == fake_clock.times


def test_the_control_is_the_fastest_that_default_mode_lists(fake_clock: Any) -> None:
    fake_clock.times = {"first": 9.0, "best": 7.0, "later": 5.0}
    outcomes, control = Kernel([["first", "best"], ["later"]]).run()
    assert control == "best"
    assert outcomes["best"].is_final
    # Noise does not decide which listed candidate the others must beat.
    fake_clock.times = {"slow": 9.0, "first": 7.1, "best": 7.0}
    assert Kernel([["slow", "first", "best"]]).run()[1] == "first"


def test_a_bad_candidate_is_rejected_before_it_is_timed(fake_clock: Any) -> None:
    """However fast it would be: its reason is recorded, the search is told that it is no good."""
    fake_clock.times = {"a": 9.0, "bad": 1.0, "c": 8.0}
    for out, reason in (
        (RIGHT * 1.5, Rejection.WRONG),
        (torch.cat([RIGHT[:7], torch.tensor([NAN])]), Rejection.UNWRITTEN),
        (RuntimeError("CUDA error: invalid argument"), Rejection.LAUNCH),
    ):
        kernel = Kernel([["a"], ["bad"], ["c"]], writes={"bad": out})
        outcomes, _ = kernel.run()
        assert outcomes["bad"].rejection is reason
        assert fake_clock.taken["bad"] == 0, reason
        assert kernel.told[-1] == {"a": 9.0, "bad": INF, "c": 8.0}, reason


def test_a_time_that_the_peaks_do_not_allow_cannot_win(fake_clock: Any) -> None:
    """The candidate is rejected, whether default mode lists it or not, and the search is told."""
    fake_clock.times = {"a": 9.0, "empty": 1.0, "none": 1.2, "c": 4.6}
    kernel = Kernel([["empty", "a"], ["none"], ["c"]])
    outcomes, control = kernel.run(floor_us=5.0)  # 4.6 us are within what peaks may be wrong by
    rejected = {name for name, one in outcomes.items() if one.rejection is Rejection.IMPLAUSIBLE}
    assert rejected == {"empty", "none"}
    assert "the measured peaks allow 5.00 us" in outcomes["empty"].said
    assert control == "a"
    assert kernel.told[-1] == {"empty": INF, "a": 9.0, "none": INF, "c": 4.6}


def test_what_the_first_candidate_that_runs_writes_is_expected(fake_clock: Any) -> None:
    """A first candidate that cannot run is rejected, and the others are compared with the next."""
    writes = {"broken": RuntimeError("no"), "b": RIGHT * 2, "c": RIGHT * 2}
    uncompiled = {winner("huge"): "OutOfResources: shared memory"}
    outcomes, control = Kernel([["broken", "b"], ["c"]], writes, uncompiled).run()
    assert outcomes["huge"].rejection is Rejection.COMPILE
    assert outcomes["broken"].rejection is Rejection.CRASHED
    assert (outcomes["b"].rejection, outcomes["c"].rejection) == (None, None)
    assert control == "b"


def test_launch_configs_tie_within_one_per_cent(fake_clock: Any) -> None:
    """A gain of two per cent decides between launch configs, though not between GEMM kernels."""
    fake_clock.times = {"a": 10.2, "b": 10.0}
    names = {}
    for method in (METHOD, with_narrow_band(METHOD)):
        outcomes, control = Kernel([["a"], ["b"]]).run(method)
        row = make_row("launch x", [*outcomes.values()], winner(control), method)
        assert row is not None
        names[method.near_tie] = row.row.winner.uid
    assert names == {0.03: "a", 0.01: "b"}


def test_a_winner_that_is_not_trusted_is_not_tried_again(fake_clock: Any) -> None:
    """It is left out wherever it comes from, unless nothing else could be the reference."""
    for banned, listed, later in (("b", "a", "cd"), ("c", "ab", "d"), ("a", "ab", "cd")):
        kept = Kernel([["a", "b"], ["c", "d"]]).search().without(winner(banned))
        assert "".join(one.uid for one in kept.listed) == listed
        assert "".join(one.uid for one in kept.calls) == listed
        assert "".join(one.uid for one in kept.more({})) == later


def test_outputs_of_one_precision_are_compared() -> None:
    """What is infinite, NaN or no float must be equal; the rest is within the tolerance."""
    for out, expected, reason in (
        ([1.0, INF, NAN], [1.0, INF, NAN], None),
        ([1.0, 1.0, 1.0], [1.0, INF, 1.0], Rejection.WRONG),
        ([1.0, -INF, 1.0], [1.0, INF, 1.0], Rejection.WRONG),
        ([1.0, NAN, 1.0], [1.0, 1.0, 1.0], Rejection.UNWRITTEN),
        ([1.0, INF, 2.0], [1.0, INF, 1.0], Rejection.WRONG),
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 4], [1, 2, 3], Rejection.WRONG),
        ([True, False], [True, True], Rejection.WRONG),
    ):
        assert judge_like(torch.tensor(out), torch.tensor(expected), 1e-3)[1] is reason


def test_a_quantized_result_may_differ_by_one_unit_of_rounding() -> None:
    """A config of a reduction may round an element of 8 bits the other way, and no further."""
    for dtype, expected, near, far in (
        (torch.int8, 16, 17, 18),
        (torch.int8, 127, 126, -128),
        (torch.uint8, 0, 1, 255),
        (torch.float8_e4m3fn, 16.0, 18.0, 32.0),
        (torch.float8_e5m2, 16.0, 20.0, 48.0),
    ):
        right = torch.full((64,), expected)
        one_off, wrong = right.clone(), right.clone()
        one_off[0], wrong[0] = near, far
        limit = NARROW_TOLERANCE.get(dtype_name(dtype))
        rejected = [
            judge_like(out.to(dtype), right.to(dtype), limit)[1] for out in (one_off, wrong)
        ]
        assert rejected == [None, Rejection.WRONG], (dtype, expected, near, far)
