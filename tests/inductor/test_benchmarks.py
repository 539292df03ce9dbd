"""Watching inductor's benchmarker: what is counted and timed, on functions that do nothing."""

from __future__ import annotations

import time

import pytest
from torch._inductor.runtime.benchmarking import Benchmarker

from warmup.inductor import connect


def measure(seconds: float = 0.0) -> float:
    """Let inductor measure a function that takes *seconds*; return what it says, in ms."""
    return float(Benchmarker().benchmark_cpu(lambda: time.sleep(seconds), warmup=1, rep=1))


def test_each_measurement_is_timed_once_while_the_context_is_open() -> None:
    """The seconds hold those of the function; nothing is timed before or afterwards."""
    measure()
    with connect().time_benchmarks() as seconds:
        measure(0.01)
        assert len(seconds) == 1
        assert 0.01 <= seconds[0] < 10
        measure()
    measure()
    assert len(seconds) == 2


def test_a_measurement_that_fails_is_timed_too() -> None:
    """Its time is spent, whatever came of it."""

    def fail() -> None:
        raise RuntimeError("no kernel")

    with connect().time_benchmarks() as seconds:
        with pytest.raises(RuntimeError, match="no kernel"):
            Benchmarker().benchmark_cpu(fail)
        assert len(seconds) == 1


def test_timing_changes_neither_counts_nor_sites() -> None:
    """Counted inside of a timed context, as `compare` does, a measurement has its own site."""
    inductor = connect()
    with inductor.count_benchmarks() as alone:
        measure()
    with inductor.time_benchmarks() as seconds, inductor.count_benchmarks() as inside:
        measure()
    assert dict(inside) == dict(alone)
    assert (sum(alone.values()), len(seconds)) == (1, 1)
