"""How the workers of a build on several devices share the CPU cores."""

from __future__ import annotations

import os

import pytest

from warmup.tuning.device_host import compile_threads

VARIABLE = "TORCHINDUCTOR_COMPILE_THREADS"


@pytest.mark.parametrize(
    ("cores", "workers", "devices", "threads"),
    [(32, 6, 2, 7), (16, 3, 1, 7), (8, 2, 2, 4), (2, 3, 1, 1), (2, 6, 2, 1)],
)
def test_the_workers_that_compile_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, devices: int, threads: int
) -> None:
    """One worker of each device times, and has a core; without a second worker all compile."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert compile_threads(workers, devices=devices) == {VARIABLE: str(threads)}


def test_a_number_of_threads_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers inherit the variable, so none is set over it."""
    monkeypatch.setenv(VARIABLE, "5")
    assert compile_threads(6, devices=2) == {}
