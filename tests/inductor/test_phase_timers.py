"""Torch's timers as phases: in real compiles on CPU with empty and warm caches, and alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch._dynamo.utils import dynamo_timed

from warmup.core.phases import Phase, PhaseClock
from warmup.inductor import connect

# A graph that inductor's caches keep, since no weights are frozen, without C++ code to compile.
PROGRAM = """
import json, torch
from warmup.core.phases import Phase, PhaseClock
from warmup.inductor import connect

def model(x):
    return (x @ x.T) @ x

def call(rows):
    clock.take()
    with clock.phase(Phase.FIRST_CALLS):
        compiled(torch.randn(rows, 4))
    return list(clock.take())

clock, compiled, found = PhaseClock(), torch.compile(model, dynamic=False), {}
with connect().time_phases(clock), torch.no_grad():
    found["cold"] = call(3)
    found["again"] = call(3)
    found["other"] = call(5)
    torch.compiler.reset()
    found["warm"] = call(3)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def entered(
    run_program: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The phases that calls of a compiled function entered, in a process of empty caches."""
    found: dict[str, list[str]] = run_program(tmp_path_factory.mktemp("phases"), "-c", PROGRAM)
    return found


def test_a_cold_compile_goes_through_every_phase(entered: dict[str, list[str]]) -> None:
    """From tracing to the first call; nothing is measured in default mode."""
    assert entered["cold"] == [
        *("tracing", "aot", "caches", "lowering", "scheduling", "code_generation"),
        *("loading_code", "waiting_for_kernels", "first_calls", "other"),
    ]


def test_a_graph_from_the_cache_is_not_lowered(entered: dict[str, list[str]]) -> None:
    """Tracing remains, the lookup in the caches, and loading the code."""
    assert set(entered["warm"]).isdisjoint({"lowering", "scheduling", "code_generation"})
    assert {"tracing", "aot", "caches", "loading_code", "first_calls"} <= set(entered["warm"])


def test_each_call_has_the_phases_of_its_own_compile(entered: dict[str, list[str]]) -> None:
    """A second call compiles nothing, and another size is traced in its own call."""
    assert entered["again"] == ["first_calls", "other"]
    assert {"tracing", "lowering"} <= set(entered["other"])


def test_timers_of_other_threads_are_not_counted() -> None:
    """Seconds of this thread would be counted twice with those of a thread beside it."""
    clock = PhaseClock()

    def trace() -> None:
        with dynamo_timed("entire_frame_compile"):
            pass

    with connect().time_phases(clock):
        thread = threading.Thread(target=trace)
        thread.start()
        thread.join()
        assert list(clock.take()) == [Phase.OTHER]
        trace()
        assert list(clock.take()) == [Phase.TRACING, Phase.OTHER]


def test_nothing_is_timed_once_the_context_is_closed() -> None:
    clock = PhaseClock()
    with connect().time_phases(clock):
        pass
    with dynamo_timed("entire_frame_compile"):
        pass
    assert list(clock.take()) == [Phase.OTHER]


def test_a_timer_without_a_phase_belongs_to_the_timer_around_it() -> None:
    """Waiting for workers is not compiling here; candidates are compiled, and then measured."""
    for outer, inner, phases in (
        ("async_compile.wait", "compile_file", ["compiling_kernels", "waiting_for_kernels"]),
        ("backend_compile", "pass.joint.any", ["aot"]),
        (
            "mm_template_precompiling",
            "mm_template_autotuning",
            ["waiting_for_kernels", "measuring"],
        ),
    ):
        clock = PhaseClock()
        with connect().time_phases(clock), dynamo_timed(outer), dynamo_timed(inner):
            pass
        assert list(clock.take()) == [*phases, "other"], (outer, inner, phases)
