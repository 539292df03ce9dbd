"""`CompiledModel.warm`: buckets are traced while workers compile kernels; results and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from warmup.serving.compile import CompiledModel

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tests/programs/warm_together.py")
TWO_THREADS = {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
Case = Callable[[str], dict[str, Any]]
RunOnce = Callable[..., tuple[Path, str]]


@pytest.fixture(scope="module")
def case(run_once: RunOnce, variables: dict[str, str]) -> Case:
    """``case("together")``: the results of that case of the program."""
    found: dict[str, dict[str, Any]] = json.loads(
        run_once("warm", PROGRAM, **variables, **TWO_THREADS)[1]
    )
    return found.__getitem__


@pytest.fixture(scope="module")
def after(case: Case, run_once: RunOnce, variables: dict[str, str]) -> dict[str, Any]:
    """The results of the next process, with the caches that the first one left."""
    folder, _ = run_once("warm", PROGRAM)
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    output = run_once("warm-after", PROGRAM, "caches", **variables, **TWO_THREADS, **caches)[1]
    results: dict[str, Any] = json.loads(output)["caches"]
    return results


def test_every_kernel_is_handed_over_before_the_first_is_waited_for(case: Case) -> None:
    """Three buckets of one kernel each: all kernels go to workers before the first wait."""
    assert case("together")["events"] == ["submit"] * 3 + ["wait"] * 3


def test_a_warmed_bucket_has_one_artifact_with_the_models_outputs(case: Case) -> None:
    """At all its sizes, under fail_on_recompile."""
    for name in ("together", "exact", "padded", "broken", "threads"):
        assert case(name)["error"] <= 1e-6
    # Also where the graph breaks, and where another thread called it meanwhile.
    for name in ("together", "exact", "padded", "broken", "threads"):
        assert set(case(name)["artifacts"].values()) == {1}
        assert case(name)["recompiles"] == 0


def test_callers_in_other_threads_are_served_meanwhile(case: Case) -> None:
    """Five calls of the same model, and two of another model that compiles as always."""
    assert case("threads")["calls"] == 7


def test_a_kernel_that_is_used_early_is_waited_for(case: Case) -> None:
    """The first call ends before the graph runs; a call of another thread waits for its result."""
    found = case("early")
    assert (found["calls then"], found["calls"]) == (0, 2)
    assert found["error"] <= 1e-6


def test_nothing_is_measured_and_inductor_is_restored(case: Case) -> None:
    """Inductor runs no benchmark while buckets are warmed."""
    assert case("together")["benchmarks"] == 0
    # Wrapped functions are put back.
    assert case("together")["restored"]


def test_a_cache_entry_carries_kernels_that_came_later(case: Case) -> None:
    """Each entry of inductor's graph cache has the kernel that its wait left with the bundler."""
    assert [len(kernels) for kernels in case("together")["carried"]] == [1, 1, 1]


def test_the_next_process_is_served_right_from_the_caches(after: dict[str, Any]) -> None:
    """It finds every graph, and AOTAutograd's entry for it, and compiles none."""
    assert (after["graphs"], after["autograd"], after["missed"]) == (3, 3, 0)
    # At all sizes; this process hands over all kernels before it waits as well.
    assert after["error"] <= 1e-6
    assert after["events"] == ["submit"] * 3 + ["wait"] * 3


def test_the_error_of_a_kernel_names_its_bucket(case: Case) -> None:
    """The compiler's own error is raised, with a note."""
    found = case("failing")
    assert found["raised"] == "OSError: no space left on device"
    assert found["notes"] == ["while the bucket n=4 was compiled"]


def test_a_bucket_whose_kernel_fails_is_compiled_again(case: Case) -> None:
    assert case("failing")["after"]["artifacts"] == {"n=4": 0, "n=16": 1}
    # Once its kernel can be compiled, it is served as the others are.
    found = case("failing")
    assert found["artifacts"] == {"n=4": 1, "n=16": 1}
    assert found["error"] <= 1e-6


def test_a_bucket_that_cannot_be_traced_leaves_those_before_it(case: Case) -> None:
    """The note names it; buckets traced before it are compiled, with right outputs."""
    found = case("untraceable")
    assert found["notes"] == ["while the bucket n=16 was compiled"]
    assert found["artifacts"] == {"n=4": 1, "n=16": 0}
    assert found["error"] <= 1e-6


def test_kernels_queue_for_workers_that_are_not_ready(case: Case) -> None:
    """While this thread hands over, and neither before nor after, nor in another thread."""
    assert case("queued") == {"before": False, "inside": True, "elsewhere": False, "after": False}


def test_late_decisions_are_counted_for_their_graph(case: Case) -> None:
    """A hit and a miss at its kernels, after the graph was compiled and marked with two hits."""
    assert case("late") == {"decisions": 4, "misses": 1}


def test_the_log_is_told_when_all_buckets_are_warm() -> None:
    """The handle logs its counts at once, instead of after some seconds without a compile."""
    handle = Mock()
    CompiledModel(Mock(), (), Mock(), handle).warm()
    handle.settle.assert_called_once_with()
