"""What inductor fuses into GEMMs, lowered for a stated H100 under rows that say so or forbid it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

Ask = Callable[..., dict[str, Any]]

ONE_GEMM = ("gelu", "scaled residual", "cast", "int8 operand", "relu of a batched product")


@pytest.fixture(scope="module")
def ask(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ask]:
    """``ask("relu", True)``: generate the code of a case under a decision for each GEMM."""
    with conversation("cuda_fusion.py", tmp_path_factory.mktemp("fusion")) as generate:
        yield lambda case, *fused, **sizes: generate(case=case, fused=fused, **sizes)


def contradictions(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in found["events"] if event["name"] == "policy.contradicted"]


def test_a_decision_is_forced_behind_a_view(ask: Ask) -> None:
    """For 8 x 1370 rows there is one kernel where the row says fused, two where it says not."""
    for case in ONE_GEMM:
        fused, apart = ask(case, True), ask(case, False)
        assert (len(fused["launches"]), len(apart["launches"])) == (1, 2), case
        assert contradictions(fused) == contradictions(apart) == [], case


def test_a_decision_is_forced_along_a_range(ask: Ask) -> None:
    """A kernel that takes a size as an argument is fused, or not, as the row says."""
    launches = [ask("gelu", fused, ranged=True)["launches"] for fused in (True, False)]
    assert [len(each) for each in launches] == [1, 2]


def test_without_a_decision_inductor_decides(ask: Ask) -> None:
    """A row without a decision is compiled as without warmup: torch 2.11 fuses behind no view."""
    is_fused = not torch.__version__.startswith("2.11.")
    assert len(ask("relu", None)["launches"]) == (1 if is_fused else 2)
    assert len(ask("relu", None, batch=0)["launches"]) == 1


def test_each_gemm_of_a_graph_has_its_own_decision(ask: Ask) -> None:
    """In an MLP the activation is fused into the first product, the other into the second."""
    for decisions, launches in (
        ((True, True), ["tem", "tem"]),
        ((True, False), ["tem", "tem", "poi"]),
        ((False, True), ["tem", "poi", "tem"]),
        ((False, False), ["tem", "poi", "tem", "poi"]),
    ):
        found = ask("mlp", *decisions)["launches"]
        assert [launch.removeprefix("triton_")[:3] for launch in found] == launches, (
            decisions,
            launches,
        )


def test_a_residual_is_fused_into_the_gemm_before_the_norm_takes_it(ask: Ask) -> None:
    """Inductor alone would add it in the norm's reduction; both ways have two kernels."""
    fused, apart = ask("residual, then a norm", True), ask("residual, then a norm", False)
    assert [len(fused["launches"]), len(apart["launches"])] == [2, 2]
    assert "stream_1" in fused["launches"][0]
    assert "stream_1" in apart["launches"][1]
    assert contradictions(fused) == []


def test_every_residual_of_a_stream_is_fused(ask: Ask) -> None:
    """The four products are one kernel; inductor alone repeats an addition in each reader."""
    found = ask("residual stream", True, None, True, batch=2, seq=128)
    assert contradictions(found) == []
    adding = [launch for launch in found["launches"] if "w2_1" in launch]
    assert len(adding) == 4
    assert len({launch.partition(".run")[0] for launch in adding}) == 1


def test_a_fusion_that_inductor_does_not_make_is_reported(ask: Ask) -> None:
    """Of two products one takes the gate; the row of the other says fused, and is contradicted."""
    found = ask("gated", True, True)
    (event,) = contradictions(found)
    assert event["option"] in {f"fusion of {key}" for key in found["keys"]}
    assert (event["expected"], event["found"]) == ("fused", "not fused")


def test_a_build_compiles_as_its_winner_says(ask: Ask) -> None:
    """While a table is tuned, the chosen template is compiled fused or not as it is served."""
    found = [ask("gelu", fused, tunes=True) for fused in (True, False)]
    assert [len(each["launches"]) for each in found] == [1, 2]
    assert {event["name"] for each in found for event in each["events"]} == {"problem.tuned"}


def test_a_hit_names_the_decision(ask: Ask) -> None:
    hits = [ask("relu", fused)["events"][0]["winner"] for fused in (True, False)]
    assert [hit.rpartition(")")[2] for hit in hits] == [" fused", " not fused"]
