"""Rows of kind ``autotune``: a user's own kernels for a stated H100, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warmup.keys.registry import kind_of

pytestmark = pytest.mark.long

PROGRAM = "cuda_user_kernels.py"
MEASURED = {  # what is launched: by inductor's fake only what is chosen
    "graph": [1024],
    "outside": [each for one in (16, 256, 1024, 2048) for each in ("before", one, "after")]
    + ["reset", 1024],
}
FOUR = ["triton.autotune"] * 4

pytest.importorskip("triton")


@pytest.fixture(params=["graph", "outside"])
def found(request: pytest.FixtureRequest, ask: Callable[..., Any]) -> dict[str, Any]:
    result: dict[str, Any] = ask(where=request.param)
    return {**result, "measured": MEASURED[request.param], "where": request.param}


def test_a_build_takes_down_what_the_kernels_own_tuner_measured(found: dict[str, Any]) -> None:
    """All hooks of the user run as without a table; the key has sizes and dtypes."""
    (key,) = found["keys"]
    kind_of(key).check(key)
    args = "*f32[4096],*f32[4096]" if found["where"] == "graph" else "*f32"
    assert f" n=4096 args={args} configs=" in key
    assert found["winner"] == "user_autotune 1024 w4 s3"
    assert found["times"] == pytest.approx([984, 744, 24, 1048])
    assert found["built"]["events"] == ["problem.tuned"]
    assert found["built"]["launched"] == found["measured"]


def test_a_row_is_replayed_and_nothing_is_measured(found: dict[str, Any]) -> None:
    """Also a config that is not the fastest; Triton's own choices are left as they were."""
    for label, block in (("answered", 1024), ("first", 16)):
        served = found[label]
        assert (served["error"], served["events"]) == (None, ["lookup.hit"])
        assert (served["launched"], served["timed"]) == ([block], 0)
    assert found["left"] == []


def test_without_a_row_its_own_tuner_measures_or_is_refused(found: dict[str, Any]) -> None:
    """Each measurement is reported, under strict too; forbid refuses before any, at each call.

    A config that is not in the user's list is not made.
    """
    for label in ("strange", "missed", "strict", "absent"):
        assert (found[label]["events"], found[label]["error"]) == (FOUR, None), label
        assert found[label]["launched"] == found["measured"], label
    for refused in found["forbidden"]:
        assert refused["error"].startswith("Uncovered")
        assert (refused["launched"], refused["timed"]) == ([], 0)
