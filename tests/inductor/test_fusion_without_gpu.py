"""What inductor fuses into GEMMs for a stated H100, as rows say, and the plan of its kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from warmup.core.roofline import PlannedBy

PROGRAM = "cuda_fusion.py"
ROWS, WIDTH, WIDER = 8 * 1370, 768, 3072  # of the program
LAUNCHED = re.compile(r"(triton_\w+)\.run|extern_kernels\.(\w+)")
Ask = Callable[..., dict[str, Any]]


def contradictions(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in found["events"] if event["name"] == "policy.contradicted"]


def test_a_decision_is_forced(ask: Ask) -> None:
    """Behind a view, along a range and in a build: one kernel where it is fused, or two."""
    cases: list[dict[str, Any]] = [
        {"case": case}
        for case in ("gelu", "scaled residual", "cast", "int8 operand", "relu of a batched product")
    ]
    cases += [{"case": "gelu", "ranged": True}, {"case": "gelu", "tunes": True}]
    for case in cases:
        for is_fused, kernels in ((True, 1), (False, 2)):
            found = ask(**case, fused=[is_fused])
            assert (len(found["launches"]), contradictions(found)) == (kernels, []), case
            (event,) = found["events"]
            assert event["name"] == ("problem.tuned" if "tunes" in case else "lookup.hit"), case
            assert event["winner"].endswith(") fused" if is_fused else ") not fused"), case


def test_what_is_fused_computes_as_in_a_kernel_of_its_own(ask: Ask) -> None:
    """Under an invariant table a template rounds its sum first, and Triton contracts nothing."""
    (source,) = ask(case="gelu", fused=[True], invariant=True)["templates"]
    before, _, after = source.partition("tmp1 = acc + tmp0\n")
    assert after.split("\n")[0].strip() == "tmp2 = tmp1.to(tl.bfloat16)"
    assert "'enable_fp_fusion': False" in before


def test_without_a_decision_inductor_decides(ask: Ask) -> None:
    """A row without a decision is compiled as without warmup: torch 2.11 fuses behind no view."""
    is_fused = not torch.__version__.startswith("2.11.")
    assert len(ask(case="relu", fused=[None])["launches"]) == (1 if is_fused else 2)
    assert len(ask(case="relu", fused=[None], batch=0)["launches"]) == 1


def test_each_gemm_of_a_graph_has_its_own_decision(ask: Ask) -> None:
    """In an MLP the activation is fused into the first product, the other into the second."""
    for decisions, kernels in (
        ((True, True), ["tem", "tem"]),
        ((True, False), ["tem", "tem", "poi"]),
        ((False, True), ["tem", "poi", "tem"]),
        ((False, False), ["tem", "poi", "tem", "poi"]),
    ):
        found = ask(case="mlp", fused=decisions)["launches"]
        assert [launch.removeprefix("triton_")[:3] for launch in found] == kernels, decisions


def test_a_residual_is_fused_into_the_gemm_before_the_norm_takes_it(ask: Ask) -> None:
    """Inductor alone would add it in the norm's reduction; both ways have two kernels."""
    fused, apart = (ask(case="residual, then a norm", fused=[each]) for each in (True, False))
    assert [len(fused["launches"]), len(apart["launches"])] == [2, 2]
    assert "stream_1" in fused["launches"][0]
    assert "stream_1" in apart["launches"][1]
    assert contradictions(fused) == []


def test_every_residual_of_a_stream_is_fused(ask: Ask) -> None:
    """The four products are one kernel; inductor alone repeats an addition in each reader."""
    found = ask(case="residual stream", fused=[True, None, True], batch=2, seq=128)
    assert contradictions(found) == []
    adding = [launch for launch in found["launches"] if "w2_1" in launch]
    assert len(adding) == 4
    assert len({launch.partition(".run")[0] for launch in adding}) == 1


def test_a_fusion_that_inductor_does_not_make_is_reported(ask: Ask) -> None:
    """Of two products one takes the gate; the row of the other says fused, and is contradicted."""
    found = ask(case="gated", fused=[True, True])
    (event,) = contradictions(found)
    assert event["option"] in {f"fusion of {key}" for key in found["keys"]}
    assert (event["expected"], event["found"]) == ("fused", "not fused")


def test_a_plan_has_the_launches_of_the_code_in_order(ask: Ask) -> None:
    for fused in ([True, False], [None, None]):
        found = ask(case="mlp", fused=fused)
        launched = [LAUNCHED.match(line) for line in found["launches"]]
        names = [match[1] or match[2] for match in launched if match is not None]
        assert [kernel["name"] for kernel in found["plan"]] == names, fused


def test_planned_templates_have_the_keys_of_their_rows_and_their_work(ask: Ask) -> None:
    """2 m n k operations; operands and results once, with what is fused into the kernel."""
    found = ask(case="mlp", fused=[True, True])
    up, down = found["plan"]
    assert [up["keys"], down["keys"]] == [[key] for key in found["keys"]]
    assert up["by"] == down["by"] == PlannedBy.TRITON
    assert up["flops"] == down["flops"] == 2 * ROWS * WIDTH * WIDER
    tensors = ROWS * WIDTH + WIDTH * WIDER + ROWS * WIDER
    assert (up["moved"], down["moved"]) == (2 * (tensors + WIDER), 2 * (tensors + WIDTH))


def test_an_embedding_moves_the_rows_that_are_looked_up(ask: Ask) -> None:
    """Not its whole weight, 197 MB, of which a fused norm reads a row for each word."""
    (kernel,) = ask(case="embedding", fused=[])["plan"]
    assert kernel["moved"] == 3 * 2 * ROWS * WIDTH + 8 * ROWS
