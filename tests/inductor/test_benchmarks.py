"""Watching inductor's benchmarker on functions that do nothing: counts, and the phase."""

from __future__ import annotations

import time

import pytest
from torch._inductor.runtime.benchmarking import Benchmarker

from warmup.core.phases import Phase, PhaseClock
from warmup.inductor import connect


def measure(seconds: float = 0.0) -> float:
    """Let inductor measure a function that takes *seconds*; return what it says, in ms."""
    return float(Benchmarker().benchmark_cpu(lambda: time.sleep(seconds), warmup=1, rep=1))


def test_measuring_is_a_phase_while_the_context_is_open() -> None:
    """The seconds hold those of the function; nothing is timed before or afterwards."""
    measure()
    clock = PhaseClock()
    with connect().time_phases(clock):
        measure(0.01)
        assert 0.01 <= clock.take()[Phase.MEASURING] < 10
    measure()
    assert Phase.MEASURING not in clock.take()


def test_a_measurement_that_fails_is_timed_too() -> None:
    """Its time is spent, whatever came of it, and what follows is not measuring."""

    def fail() -> None:
        raise RuntimeError("no kernel")

    clock = PhaseClock()
    with connect().time_phases(clock):
        with pytest.raises(RuntimeError, match="no kernel"):
            Benchmarker().benchmark_cpu(fail)
        assert Phase.MEASURING in clock.take()
        assert Phase.MEASURING not in clock.take()


def test_timing_changes_neither_counts_nor_sites() -> None:
    """Counted inside of a timed context, as `compare` does, a measurement has its own site."""
    inductor = connect()
    with inductor.count_benchmarks() as alone:
        measure()
    with inductor.time_phases(PhaseClock()), inductor.count_benchmarks() as inside:
        measure()
    assert dict(inside) == dict(alone)
    assert sum(alone.values()) == 1
