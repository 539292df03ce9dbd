"""The clock of a start's phases, on a faked clock of the machine."""

from __future__ import annotations

import pytest

from warmup.core import phases
from warmup.core.phases import Phase, PhaseClock


class Now:
    """A clock of the machine that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
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
    """A timer that began before the clock listened changes nothing."""
    clock = PhaseClock()
    with clock.phase(Phase.FIRST_CALLS):
        clock.enter(Phase.LOWERING)
        now.seconds += 1
    clock.leave()
    now.seconds += 2
    assert clock.take() == {Phase.LOWERING: 1, Phase.FIRST_CALLS: 0, Phase.OTHER: 2}


def test_each_take_begins_anew(now: Now) -> None:
    """A bucket has the seconds since the bucket before, and only phases that it entered."""
    clock = PhaseClock(since=90.0)
    clock.charge(Phase.IMPORT)
    assert clock.take() == {Phase.IMPORT: 10, Phase.OTHER: 0}
    now.seconds += 3
    assert clock.take() == {Phase.OTHER: 3}
