"""The clock of a start's phases, on a faked clock of the machine."""

from __future__ import annotations

import pytest

from warmup.core import phases
from warmup.core.phases import (
    BuildClock,
    BuildStage,
    Phase,
    PhaseClock,
    added,
    document_of,
    phases_from,
)


class Now:
    """A clock of the machine that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        """Return the seconds of the clock."""
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(phases, "time", now)
    return now


def test_a_second_belongs_to_the_innermost_phase(now: Now) -> None:
    """Nested phases are not counted twice, and all add up to the time that passed."""
    clock = PhaseClock()
    now.seconds += 1
    with clock.phase(Phase.FIRST_CALLS):
        now.seconds += 2
        clock.enter(Phase.TRACING)
        now.seconds += 4
        clock.enter(Phase.AOT)
        now.seconds += 8
        clock.leave()
        now.seconds += 16
        clock.leave()
        now.seconds += 32
    assert clock.take() == {Phase.TRACING: 20, Phase.AOT: 8, Phase.FIRST_CALLS: 34, Phase.OTHER: 1}


def test_phases_left_open_by_an_error_end_with_the_phase_around_them(now: Now) -> None:
    clock = PhaseClock()
    with clock.phase(Phase.FIRST_CALLS):
        clock.enter(Phase.LOWERING)
        now.seconds += 1
    now.seconds += 2
    assert clock.take() == {Phase.LOWERING: 1, Phase.FIRST_CALLS: 0, Phase.OTHER: 2}


def test_each_take_begins_anew(now: Now) -> None:
    """A bucket has the seconds since the bucket before, and only phases that it entered."""
    clock = PhaseClock(since=90.0)
    clock.charge(Phase.IMPORT)
    assert clock.take() == {Phase.IMPORT: 10, Phase.OTHER: 0}
    now.seconds += 3
    assert clock.take() == {Phase.OTHER: 3}


def test_more_ends_than_begins_leave_other_under_way(now: Now) -> None:
    """A timer that began before the clock listened changes nothing."""
    clock = PhaseClock()
    clock.leave()
    now.seconds += 1
    assert clock.take() == {Phase.OTHER: 1}


def test_sums_are_in_the_order_of_a_start() -> None:
    total = added(({Phase.OTHER: 1.0, Phase.AOT: 2.0}, {Phase.IMPORT: 4.0, Phase.AOT: 8.0}))
    assert list(total.items()) == [(Phase.IMPORT, 4.0), (Phase.AOT, 10.0), (Phase.OTHER, 1.0)]


def test_a_document_is_read_as_it_was_written() -> None:
    assert phases_from(document_of({Phase.AOT: 1.23456})) == {Phase.AOT: 1.235}


def test_the_stages_of_a_build_add_up(now: Now) -> None:
    """Trials in a compile are not part of it, and stages come in the order of the page."""
    clock = BuildClock(since=99.0)
    with clock.phase(BuildStage.JUDGING), clock.phase(BuildStage.COMPILING):
        now.seconds += 2
        with clock.phase(BuildStage.FUSED_TRIALS):
            now.seconds += 4
    stages = clock.take()
    assert list(stages) == [
        BuildStage.COMPILING,
        BuildStage.FUSED_TRIALS,
        BuildStage.JUDGING,
        BuildStage.OTHER,
    ]
    assert document_of(stages) == {
        "compiling": 2.0,
        "fused_trials": 4.0,
        "judging": 0.0,
        "other": 1.0,
    }
