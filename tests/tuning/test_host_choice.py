"""`choose_for_host`: other winners for a bucket that the host limits. Times are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from warmup.core.device import CallCost
from warmup.core.rows import (
    Evidence,
    Family,
    Flag,
    Rejection,
    Row,
    Scope,
    Timing,
    Tuned,
    Winner,
    is_for_host,
    lag_behind_library,
)
from warmup.tuning.session import choose_for_host, with_host_winner

LIBRARY = Winner(Family.EXTERN, "aten::addmm")
TRITON = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 16),), "0123abcd")
LARGE = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 64),), "0123abcd")
KEY = "addmm m=16"
HOST_LIMITED = CallCost(host_us=120.0, device_us=30.0)


def problem(
    key: str = KEY,
    *,
    times: Mapping[Winner, tuple[float, float | None]] | None = None,
    scope: Scope = Scope.BARE,
    flags: tuple[Flag, ...] = (),
    along: tuple[tuple[int, float | None], ...] = (),
    along_us: Mapping[Winner, float] | None = None,
) -> Tuned:
    """Return a problem that the library won; *times* has the device's and the host's, by winner."""
    times = times or {LIBRARY: (10.0, 25.0), TRITON: (12.0, 7.0), LARGE: (15.0, 7.0)}
    is_fused = scope is Scope.FUSED
    timings = tuple(
        Timing(
            winner,
            device_us / 2 if is_fused else device_us,
            fused_us=device_us if is_fused else None,
            along_us=((2, along_us[winner]),) if along_us and winner in along_us else (),
            host_us=host_us,
            spread=0.01,
            error=0.02,
        )
        for winner, (device_us, host_us) in times.items()
    )
    device_us, host_us = times[LIBRARY]
    evidence = Evidence(
        time_us=device_us,
        library_us=device_us,
        runner_up=str(TRITON),
        runner_up_us=times[TRITON][0] if TRITON in times else None,
        tried=len(times),
        tflops=100.0,
        flags=flags,
        scope=scope,
        bare_us=device_us / 2 if is_fused else None,
        along=along,
        host_us=host_us,
        library_host_us=host_us,
    )
    return Tuned(key, Row(LIBRARY, evidence), timings)


def chosen(*tuned: Tuned, cost: CallCost = HOST_LIMITED, count: int = 1) -> dict[str, Winner]:
    return choose_for_host(cost, tuned, {each.key: count for each in tuned})


def test_the_host_is_saved_where_it_limits_the_bucket() -> None:
    """The candidate that is enqueued in 7 us replaces the one in 25; the device has time for it."""
    assert chosen(problem()) == {KEY: TRITON}
    # Even where its kernel is enqueued more slowly than it runs: the queue is full of others.
    assert chosen(problem(), cost=CallCost(host_us=99.0, device_us=100.0)) == {}
    # Of equally cheap candidates the faster on the device wins, in the scope of the row.
    for scope in Scope:
        assert chosen(problem(scope=scope)) == {KEY: TRITON}


def test_the_device_does_not_become_the_limit() -> None:
    """Of four such kernels the first two replacements gain; the others would make it slower."""
    slow = {LIBRARY: (10.0, 25.0), TRITON: (40.0, 7.0), LARGE: (50.0, 7.0)}
    cost = CallCost(host_us=120.0, device_us=30.0)
    found = chosen(*(problem(f"addmm m=1{i}", times=slow) for i in range(4)), cost=cost)
    assert len(found) == 2


def test_too_small_a_gain_of_the_host_is_none() -> None:
    """One replacement gains 2 us of 120, too little; ten of them gain 20."""
    small = {LIBRARY: (1.0, 9.0), TRITON: (1.0, 7.0)}
    assert chosen(problem(times=small)) == {}
    assert chosen(problem(times=small), count=10) == {KEY: TRITON}
    # A candidate within a tenth of the winner's own time of the host does not replace it.
    near = {LIBRARY: (10.0, 10.0), TRITON: (10.0, 9.5)}
    assert chosen(problem(times=near), count=50) == {}


def test_rows_whose_times_decide_nothing_stay() -> None:
    """Such are rows of an earlier build, and those of other decisions."""
    assert chosen(problem(times={LIBRARY: (10.0, None), TRITON: (10.0, 7.0)})) == {}
    assert chosen(problem(times={LIBRARY: (10.0, 25.0), TRITON: (10.0, None)})) == {}
    # Its device times carry no decision, so neither do those of the host.
    assert chosen(problem(flags=(Flag.UNSTABLE,))) == {}
    # A rejected candidate is not chosen.
    tuned = problem()
    timings = tuple(
        t if t.winner == LIBRARY else Timing(t.winner, 1.0, Rejection.WRONG, host_us=1.0)
        for t in tuned.timings
    )
    assert chosen(Tuned(KEY, tuned.row, timings)) == {}


def test_padded_weights_are_not_decided_by_the_host() -> None:
    """They decide which products several buckets have, and their rows are others."""
    tuned = problem()
    winner = replace(tuned.row.winner, family=Family.WEIGHT)
    assert chosen(replace(tuned, row=replace(tuned.row, winner=winner))) == {}


def test_a_winner_for_the_host_is_not_too_slow_along_its_range() -> None:
    """At the lower end one candidate takes 1.5 times the best, and the other one is taken."""
    tuned = problem(
        along=((2, 1.0), (16, 1.0)), along_us={LIBRARY: 10.0, TRITON: 15.0, LARGE: 10.5}
    )
    assert chosen(tuned) == {KEY: LARGE}
    assert with_host_winner(tuned, LARGE).row.evidence.along == ((2, 1.05), (16, None))


def test_the_evidence_is_that_of_the_new_winner() -> None:
    """Its times and rate are, and the former winner is the runner-up."""
    for scope in Scope:
        row = with_host_winner(problem(scope=scope), TRITON).row
        assert row.winner == TRITON, scope
        found = row.evidence
        assert (found.time_us, found.host_us, found.library_us) == (12.0, 7.0, 10.0), scope
        assert (found.runner_up, found.runner_up_us) == (str(LIBRARY), 10.0), scope
        assert found.bare_us == (6.0 if scope is Scope.FUSED else None)
        assert found.tflops == pytest.approx(100 * 10 / 12, rel=1e-3), scope
        assert (found.spread, found.error) == (0.01, 0.02), scope


def test_a_way_of_a_template_is_chosen_for_the_host_along_a_range() -> None:
    """Fused and not fused are two alternatives of one template, whose times alone are the same."""
    fused, apart = replace(TRITON, fused=True), replace(TRITON, fused=False)
    ways = {LIBRARY: (10.0, 25.0), fused: (12.0, 7.0), apart: (12.0, 14.0)}
    along_us = {LIBRARY: 10.0, fused: 10.5, apart: 10.5}
    tuned = problem(times=ways, scope=Scope.FUSED, along=((2, 1.0), (16, 1.0)), along_us=along_us)
    evidence = replace(tuned.row.evidence, kernels=2, library_kernels=2)
    tuned = replace(tuned, row=replace(tuned.row, evidence=evidence))
    assert chosen(tuned) == {KEY: fused}
    found = with_host_winner(tuned, fused).row.evidence
    assert (found.kernels, found.library_kernels, found.along[0]) == (None, 2, (2, 1.05))


def test_a_winner_for_the_host_may_be_slower_on_the_device() -> None:
    """It is told from one that was chosen for the sizes of its range, and does not count as lag."""
    ranged = problem(along=((2, 1.0), (16, 1.0)), along_us={LIBRARY: 10.0, TRITON: 10.0})
    for_host = with_host_winner(ranged, TRITON).row.evidence
    assert is_for_host(for_host)
    assert lag_behind_library(for_host) is None
    assert not is_for_host(ranged.row.evidence)
