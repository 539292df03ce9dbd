"""What a device model's predictions make of GEMM selections, for a stated H100.

Each case is one line to tests/programs/cuda_predicted.py: real heuristics, lowering and codegen,
and a device model fitted to measured times of an H100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

INSIDE = {"op": "addmm", "m": 1376, "n": 768, "k": 3072}
Lower = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def lower(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lower]:
    """``lower(INSIDE, on_miss="predict")``: lower a case in the program, and return its output."""
    with conversation("cuda_predicted.py", tmp_path_factory.mktemp("predicted")) as ask:
        yield lambda problem, **case: ask(**problem, **case)


def test_a_predicted_search_generates_the_most_promising_alone(lower: Lower) -> None:
    """With --top 3 code is generated for three templates; they and the library are measured.

    Of library calls torch 2.11 has two.
    """
    found = lower(INSIDE, search="predicted", top=3)
    library = [uid for uid in found["candidates"] if uid.startswith("aten::")]
    assert len(found["generated"]) == 3
    assert (found["search"], found["tried"]) == ("predicted", 3 + len(library))
    assert library
    assert found["left_out"] > 40  # of a wide search


def test_the_measured_best_of_the_training_set_is_among_the_promising(lower: Lower) -> None:
    """The template that was fastest on the H100 for nearly this problem is a candidate."""
    found = lower(INSIDE, search="predicted", top=3)
    assert "triton::mm 64x128x128 w4 s4" in found["configs"]


def test_an_unsure_search_is_the_default_search(lower: Lower) -> None:
    """Outside of what was measured every candidate of the default search is measured."""
    found = lower({**INSIDE, "m": 16}, search="predicted", top=3)
    assert (found["search"], found["left_out"]) == ("default", 0)
    assert found["tried"] == lower({**INSIDE, "m": 16}, search="default")["tried"]


def test_a_miss_takes_the_config_that_certainly_gains(lower: Lower) -> None:
    """The predicted template is the one kernel, reported with its gain, and no hit or miss."""
    served = lower(INSIDE, on_miss="predict", gain=1.2)
    (event,) = served["events"]
    assert (event["name"], event["gain"], event["bound"]) == ("lookup.predicted", 1.2, 1.2)
    assert (served["generated"], served["library"]) == (["mm"], 0)
    assert "BLOCK_M=128,BLOCK_N=128" in event["choice"]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"on_miss": "predict"}, id="the bound is not above 1"),
        pytest.param({"on_miss": "fallback", "gain": 1.2}, id="nobody asked to predict"),
        pytest.param({"on_miss": "predict", "gain": 1.2, "hash": "0"}, id="another template"),
    ],
)
def test_else_a_miss_takes_the_library(lower: Lower, case: dict[str, Any]) -> None:
    """The library's kernel is compiled, and it is a miss."""
    served = lower(INSIDE, **case)
    assert [event["name"] for event in served["events"]] == ["lookup.missed"]
    assert (served["generated"], served["library"]) == ([], 1)
