"""`warmup.compile`: which artifact serves a call, and how all of them are warmed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tests/programs/serve_compiled.py")
TWO_THREADS = {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
CALLED = ("range", "pad", "exact", "dependent", "counted", "stepping", "broken", "narrow", "fixed")
CALLED += ("refused", "empty", "grid-range", "grid-pad", "callers", "ladders")
WARMED = ("together", "warm exact", "warm padded", "warm broken", "failing", "untraceable")
WARMED += ("threads", "early")
Case = Callable[[str], dict[str, Any]]
RunOnce = Callable[..., tuple[Path, str]]


@pytest.fixture(scope="module")
def case(run_once: RunOnce, variables: dict[str, str]) -> Case:
    found: dict[str, dict[str, Any]] = {
        **json.loads(run_once("compiled", PROGRAM, *CALLED, **variables)[1]),
        **json.loads(run_once("warm", PROGRAM, *WARMED, **variables, **TWO_THREADS)[1]),
    }
    return found.__getitem__


def test_every_size_has_the_output_of_the_model(case: Case) -> None:
    """In every bucket, beyond the last, in two dims, with nested arguments, by eight threads."""
    for name in ("range", "pad", "exact", "grid-range", "grid-pad", "callers"):
        assert case(name)["error"] <= 1e-5, name
    for name in ("grid-range", "grid-pad"):
        assert (case(name)["recompiles"], case(name)["outside"]) == (0, {}), name
    assert case("callers")["calls"] == 96
    assert {*case("callers")["artifacts"].values()} == {1}


def test_a_bucket_has_one_artifact_for_its_interval(case: Case) -> None:
    """Twelve sizes, then twenty-five under fail_on_recompile: one artifact each.

    The limit of recompiles is each bucket's own: it is 1 here, four buckets are compiled, and
    nothing else may be. A padded bucket has one static artifact.
    """
    found = case("range")
    assert found["artifacts"] == {"n=1": 1, "n=2..16": 1, "n=17..256": 1, "n=257..560": 1}
    assert (found["recompiles"], found["limit"]) == (0, 1)
    assert found["refused"] == "FailOnRecompileLimitHit"
    assert case("pad")["artifacts"] == {"n=16": 1, "n=256": 1, "n=560": 1}


def test_calls_that_no_bucket_serves_are_counted_or_refused(case: Case) -> None:
    """Of `exact` nine of twelve sizes; how often is told at the first, second, fourth, ... call."""
    found, exact = case("range"), case("exact")
    assert found["outside"] == {"beyond the last bucket": 1}
    assert found["text"] == (
        "policy range: 4 of 4 buckets compiled, 0 recompiles, 1 call beyond the last bucket"
    )
    assert exact["outside"]["between two buckets"] == 9
    assert len([line for line in exact["said"] if "no bucket" in line]) == 4
    assert case("empty")["outside"] == {"beyond the last bucket": 1}
    assert case("refused")["raised"] == [
        "SizeError: n=600: outside of 1..560; send sizes that a bucket serves, or add a bucket"
    ]


def test_what_depends_on_padding_is_served_uncompiled(case: Case) -> None:
    for name, count, reason in (
        ("dependent", 3, "n cannot be padded"),
        ("counted", 2, "padded to n=16 the output 1 is 16, and 5 unpadded: n cannot be padded"),
        ("stepping", 2, "padded to n=16 a call writes other values into buffer steps: n cannot"),
    ):
        found = case(name)
        assert found["error"] <= 1e-6, name
        assert found["outside"] == {"dependent on padding": count}, name
        assert reason in found["said"][0], name


def test_a_graph_break_is_logged_once(case: Case) -> None:
    """The log names its place; the parts are compiled, and the results are right."""
    found = case("broken")
    assert found["error"] <= 1e-6
    assert len(found["said"]) == len(found["breaks"]) == 1
    assert f'(File "{PROGRAM}", line ' in found["breaks"][0]
    assert found["artifacts"]["n=17..256"] == 1


def test_a_size_that_decides_cannot_be_in_an_interval(case: Case) -> None:
    """The guard is named; the interval is not tried again, and a bucket on one side is served."""
    found = case("narrow")
    raised, again = found["raised"]
    assert raised == again
    assert raised.startswith("ModelError: sizes n=257..560 cannot share one artifact: ")
    assert "the generated guard 401 <= size and size <= 560" in raised
    assert found["artifacts"]["n=2..16"] == 1
    assert (found["traced"][0] > 0, found["traced"][2]) == (True, 0)
    (raised,) = case("fixed")["raised"]
    assert "specialized it to be a constant (560)" in raised
    assert f'(File "{PROGRAM}", line ' in raised


def test_ranges_have_caches_of_their_own(case: Case) -> None:
    """Three ladders over one cache folder take no artifact of another range, and find their own."""
    assert case("ladders")["error"] <= 1e-5
    assert case("ladders")["from_cache"] >= 2


def test_a_warmed_bucket_has_one_artifact_with_the_models_outputs(case: Case) -> None:
    """Under fail_on_recompile, with a graph break, and called by another thread meanwhile.

    The dims of an alias are marked for the compiler: the caller's tensor is left alone.
    """
    for name in ("together", "warm exact", "warm padded", "warm broken", "threads"):
        found = case(name)
        assert found["error"] <= 1e-6, name
        assert ({*found["artifacts"].values()}, found["recompiles"]) == ({1}, 0), name
    assert case("threads")["calls"] == 7
    assert case("together")["marks"] == []


def test_every_kernel_is_handed_over_before_the_first_is_waited_for(case: Case) -> None:
    """Nothing is measured meanwhile, inductor is restored, and cache entries have their kernels."""
    found = case("together")
    assert found["events"] == ["submit"] * 3 + ["wait"] * 3
    assert (found["benchmarks"], found["restored"], found["carried"]) == (0, True, [1, 1, 1])


def test_the_next_process_is_served_right_from_the_caches(
    case: Case, run_once: RunOnce, variables: dict[str, str]
) -> None:
    """It finds every graph, and AOTAutograd's entry for it, and compiles none."""
    assert case("together")["error"] <= 1e-6
    folder, _ = run_once("warm", PROGRAM)
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    words = "warm-after", PROGRAM, "together"
    after = json.loads(run_once(*words, **variables, **TWO_THREADS, **caches)[1])["together"]
    assert (after["graphs"], after["autograd"], after["missed"]) == (3, 3, 0)
    assert after["error"] <= 1e-6
    assert after["events"] == ["submit"] * 3 + ["wait"] * 3


def test_a_bucket_that_cannot_be_compiled_is_named_and_leaves_the_others(case: Case) -> None:
    """Of a kernel that fails, and of a graph that cannot be traced; the next call tries again."""
    found = case("failing")
    assert found["raised"] == "OSError: no space left on device"
    assert found["notes"] == ["while the bucket n=4 was compiled"]
    assert found["after"]["artifacts"] == {"n=4": 0, "n=16": 1}
    assert found["artifacts"] == {"n=4": 1, "n=16": 1}
    assert found["error"] <= 1e-6
    untraced = case("untraceable")
    assert untraced["notes"] == ["while the bucket n=16 was compiled"]
    assert untraced["artifacts"] == {"n=4": 1, "n=16": 0}
    assert untraced["error"] <= 1e-6


def test_a_kernel_that_is_used_early_is_waited_for(case: Case) -> None:
    """The first call ends before the graph runs; a call of another thread waits for its result."""
    found = case("early")
    assert (found["calls then"], found["calls"]) == (0, 2)
    assert found["error"] <= 1e-6
