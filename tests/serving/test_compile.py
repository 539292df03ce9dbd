"""`warmup.compile`: which artifact serves a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/programs/serve_compiled.py"
Serve = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def serve(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> Serve:
    """``serve("range")``: the results of that case of the program."""
    found: dict[str, dict[str, Any]] = json.loads(
        run_once("compiled", str(PROGRAM), **variables)[1]
    )
    return found.__getitem__


def test_every_size_has_the_output_of_the_model(serve: Serve) -> None:
    """In every bucket, beyond the last, with keyword arguments and nested ones."""
    for policy in ("range", "pad", "exact"):
        assert serve(policy)["error"] <= 1e-5, policy


def test_a_bucket_has_one_artifact_for_its_interval(serve: Serve) -> None:
    """Twelve sizes, then twenty-five under fail_on_recompile: one artifact each.

    The limit of recompiles is each bucket's own: it is 1 here, four buckets are compiled, and
    nothing else may be. A padded bucket has one static artifact.
    """
    found = serve("range")
    assert found["artifacts"] == {"n=1": 1, "n=2..16": 1, "n=17..256": 1, "n=257..560": 1}
    assert (found["recompiles"], found["limit"]) == (0, 1)
    assert found["refused"] == ["FailOnRecompileLimitHit"] * 2
    assert serve("pad")["artifacts"] == {"n=16": 1, "n=256": 1, "n=560": 1}


def test_calls_that_no_bucket_serves_are_counted(serve: Serve) -> None:
    """Of `exact` nine of twelve sizes; how often is told at the first, second, fourth, ... call."""
    found, exact = serve("range"), serve("exact")
    assert found["outside"] == {"beyond the last bucket": 1}
    assert found["text"] == (
        "policy range: 4 of 4 buckets compiled, 0 recompiles, 1 call beyond the last bucket"
    )
    assert exact["outside"]["between two buckets"] == 9
    assert len([line for line in exact["said"] if "no bucket" in line]) == 4
    assert serve("empty")["outside"] == {"beyond the last bucket": 1}


def test_sizes_can_be_refused(serve: Serve) -> None:
    """With ``outside="error"`` a call that no bucket serves says so."""
    assert serve("refused")["raised"] == [
        "SizeError: n=600: outside of 1..560; send sizes that a bucket serves, or add a bucket"
    ]


def test_rows_that_depend_on_each_other_are_not_padded(serve: Serve) -> None:
    """The first padded call shows it; the bucket is served uncompiled, with right results."""
    found = serve("dependent")
    assert found["error"] <= 1e-6
    assert found["outside"] == {"dependent on padding": 3}
    assert "n cannot be padded" in found["said"][0]


def test_what_is_no_tensor_and_what_is_written_is_not_padded(serve: Serve) -> None:
    """A number that padding changes, and a buffer: the bucket is served uncompiled."""
    for case, reason in (
        ("counted", "padded to n=16 the output 1 is 16, and 5 unpadded: n cannot be padded"),
        (
            "stepping",
            "padded to n=16 a call writes other values into buffer steps: n cannot be padded",
        ),
    ):
        found = serve(case)
        assert found["error"] == 0.0, (case, reason)
        assert found["outside"] == {"dependent on padding": 2}, (case, reason)
        assert reason in found["said"][0], (case, reason)


def test_a_graph_break_is_logged_once(serve: Serve) -> None:
    """The log names its place; the parts are compiled, and the results are right."""
    found = serve("broken")
    assert found["error"] == 0.0
    assert len(found["said"]) == len(found["breaks"]) == 1
    assert f'(File "{PROGRAM}", line ' in found["breaks"][0]
    assert found["artifacts"]["n=17..256"] == 1


def test_a_size_that_decides_cannot_be_in_an_interval(serve: Serve) -> None:
    """The guard is named; a bucket on one side of it is served."""
    found = serve("narrow")
    raised, again = found["raised"]
    assert raised == again
    assert raised.startswith("ModelError: sizes n=257..560 cannot share one artifact: ")
    assert "the generated guard 401 <= size and size <= 560" in raised
    assert found["artifacts"]["n=2..16"] == 1


def test_a_range_that_cannot_be_compiled_is_not_tried_again(serve: Serve) -> None:
    """The first call of the interval traces the model, the next one raises at once."""
    first, _, again = serve("narrow")["traced"]
    assert first > 0
    assert again == 0


def test_a_dim_that_turns_out_static_is_an_error(serve: Serve) -> None:
    """The error names the place in the model that fixes its size."""
    (raised,) = serve("fixed")["raised"]
    assert "specialized it to be a constant (560)" in raised
    assert f'(File "{PROGRAM}", line ' in raised


def test_two_dims_are_served_together(serve: Serve) -> None:
    """Every combination that is called has one artifact; outputs are cut in both dims."""
    for policy in ("range", "pad"):
        found = serve(f"grid-{policy}")
        assert found["error"] <= 1e-6, policy
        assert found["recompiles"] == 0, policy
        assert found["outside"] == {}, policy


def test_callers_from_several_threads_are_served(serve: Serve) -> None:
    """Eight of them call all sizes at once: one artifact for each bucket, right results."""
    found = serve("threads")
    assert found["calls"] == 96
    assert found["error"] <= 1e-5
    assert set(found["artifacts"].values()) == {1}


def test_warm_compiles_every_bucket(serve: Serve) -> None:
    """A call of any size is enough; nothing is compiled afterwards."""
    found = serve("warm")
    assert found["artifacts"] == {"n=1": 1, "n=2..4": 1, "n=5..16": 1}
    assert found["error"] <= 1e-6


def test_ranges_have_caches_of_their_own(serve: Serve) -> None:
    """Three ladders over one cache folder take no artifact of another range, and find their own."""
    assert serve("ladders")["error"] <= 1e-5
    assert serve("ladders")["from_cache"] >= 2


def test_the_tensors_of_callers_are_left_alone(serve: Serve) -> None:
    """The dims of an alias are marked for the compiler."""
    assert serve("warm")["marks"] == []
