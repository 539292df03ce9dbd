"""Torch's timers as phases: in a real compile on CPU with empty caches, and alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.utils import dynamo_timed
from torch._inductor.runtime.benchmarking import Benchmarker

from warmup.core.phases import Phase, PhaseClock
from warmup.inductor import connect

# A graph that inductor's caches keep, since no weights are frozen, without C++ code to compile.
PROGRAM = """
import json, torch
from warmup.core.phases import Phase, PhaseClock
from warmup.inductor import connect

def model(x):
    return (x @ x.T) @ x

clock, compiled = PhaseClock(), torch.compile(model, dynamic=False)
with connect().time_phases(clock), torch.no_grad():
    clock.take()
    with clock.phase(Phase.FIRST_CALLS):
        compiled(torch.randn(3, 4))
print(json.dumps(list(clock.take())))
"""


def test_a_cold_compile_goes_through_every_phase(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    """From tracing to the first call; nothing is measured in default mode."""
    assert run_program(tmp_path, "-c", PROGRAM) == [
        *("tracing", "aot", "caches", "lowering", "scheduling", "code_generation"),
        *("loading_code", "waiting_for_kernels", "first_calls", "other"),
    ]


def measure(seconds: float = 0.0) -> float:
    """Let inductor measure a function that takes *seconds*; return what it says, in ms."""
    return float(Benchmarker().benchmark_cpu(lambda: time.sleep(seconds), warmup=1, rep=1))


def test_measuring_is_a_phase_while_the_context_is_open() -> None:
    """Also a measurement that fails; nothing is timed before or afterwards."""

    def fail() -> None:
        raise RuntimeError("no kernel")

    measure()
    clock = PhaseClock()
    with connect().time_phases(clock):
        measure(0.01)
        assert 0.01 <= clock.take()[Phase.MEASURING] < 10
        with pytest.raises(RuntimeError, match="no kernel"):
            Benchmarker().benchmark_cpu(fail)
        assert Phase.MEASURING in clock.take()
        assert Phase.MEASURING not in clock.take()
    measure()
    with dynamo_timed("entire_frame_compile"):
        pass
    assert list(clock.take()) == [Phase.OTHER]
