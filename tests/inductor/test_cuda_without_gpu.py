"""CUDA lowering, scheduling and code generation for a stated H100, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
Lower = Callable[..., dict[str, Any]]
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
RANGE = [2, 1024]

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def lower(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lower]:
    """``lower(op="mm", ...)``: lower a case in the program, and return its output."""
    with conversation("cuda_lowering.py", tmp_path_factory.mktemp("lowering")) as ask:
        yield ask


def names(result: dict[str, Any]) -> list[str]:
    return [event["name"] for event in result["events"]]


def test_a_template_row_is_the_one_choice_generated_and_its_epilogue_fuses(lower: Lower) -> None:
    """One template is generated with the recorded tile, one fused kernel runs, nothing is timed."""
    for (case, m), op, (winner, template) in product(
        {"static": 512, "ranged": RANGE}.items(),
        ("mm", "addmm"),
        (("triton", "mm"), ("tma", "mm_persistent_tma")),
    ):
        result = lower(op=op, winner=winner, m=m, epilogue=True, tile=TILE)
        assert result["generated"] == [template], (case, op, winner, template)
        assert result["launches"] == ["triton_tem_fused_0"], (case, op, winner, template)
        assert result["externs"] == [], (case, op, winner, template)
        assert result["tile"] == {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, (
            case,
            op,
            winner,
            template,
        )
        assert names(result) == ["lookup.hit"], (case, op, winner, template)


def test_a_template_row_reads_a_padded_operand(lower: Lower) -> None:
    """The row of a GEMM whose result is returned hits, and its kernel reads rows 3456 apart."""
    for visible in (False, True):
        open_one = {"m": 64, "n": 256, "k": 3420, "produced": True, "visible": visible}
        result = lower(op="addmm", winner="triton", **open_one)
        assert result["rows_apart"] == {"stated": [3456], "read": [3456]}, visible
        assert names(result) == ["lookup.hit"], visible


def test_the_other_ops_take_template_rows(lower: Lower) -> None:
    for op in ("bmm", "baddbmm", "mm_plus_mm", "int_mm", "scaled_mm"):
        result = lower(op=op, winner="triton", m=64, epilogue=True, tile=TILE)
        assert len(result["generated"]) == 1, op
        assert result["tile"] == {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, op
        assert names(result) == ["lookup.hit"], op


def test_a_decompose_k_row_is_split_as_recorded(lower: Lower) -> None:
    """A decompose_k row lowers to a batched GEMM and a sum; no Triton template is generated."""
    result = lower(op="mm", winner="decompose_k", m=32, tile={"k_split": 16})
    assert (result["generated"], result["externs"]) == ([], ["bmm_dtype"])
    assert list(result["rows"].values()) == ["decompose_k(k_split=16)"]
    assert names(result) == ["lookup.hit"]


def test_a_library_row_generates_no_template(lower: Lower) -> None:
    """An ATen row calls the library, keeps the epilogue in its own kernel, and times nothing."""
    for (case, m), op in product({"static": 512, "ranged": RANGE}.items(), ("mm", "addmm")):
        result = lower(op=op, winner="extern", m=m, epilogue=True)
        assert (result["generated"], result["externs"]) == ([], [op]), (case, op)
        assert result["launches"] == ["triton_poi_fused_0"], (case, op)
        assert names(result) == ["lookup.hit"], (case, op)


def test_tma_rows_do_not_specialise_a_dynamic_m(lower: Lower) -> None:
    """Serving a TMA row for a range leaves no guard that pins M to one size."""
    result = lower(op="mm", winner="tma", m=RANGE)
    assert not [guard for guard in result["guards"] if guard.startswith("Eq(")]


def test_the_same_gemm_with_another_epilogue_is_another_key(lower: Lower) -> None:
    keys = []
    for epilogue in (True, False):
        keys += lower(op="mm", winner="extern", m=512, epilogue=epilogue)["rows"]
    assert [key.split(" | ")[1] for key in keys] == [
        "epilogue=relu,mul(bf16[768])",
        "epilogue=none",
    ]
    assert keys[0].split(" | ")[0] == keys[1].split(" | ")[0]


def test_a_miss_falls_back_to_the_library_without_generating(lower: Lower) -> None:
    """Without a row there is one miss, no template is generated, and the library is called."""
    result = lower(op="addmm", winner="none", m=512, mode="fallback")
    first = "bias_addmm" if torch.__version__.startswith("2.11.") else "addmm"
    assert (result["generated"], result["externs"]) == ([], [first])
    assert [(e["name"], e["reason"]) for e in result["events"]] == [
        ("lookup.missed", "not_in_table")
    ]


def test_a_miss_is_an_error_when_strict(lower: Lower) -> None:
    """Without a row, strict serving raises a MissError out of the compile."""
    assert lower(op="mm", winner="none", m=512)["error"].startswith("MissError: no row")


def test_a_row_that_does_not_fit_this_torch_is_a_miss(lower: Lower) -> None:
    """Kwargs that the installed template lacks, or that are untrue, never reach a kernel."""
    for tile, reason in (
        ({"ACC_TYPE": "tl.float16"}, "choice_rejected"),
        ({"NUM_CTAS": 2}, "template_changed"),
        ({"BLOCK_K": 48}, "choice_rejected"),
    ):
        result = lower(op="mm", winner="triton", m=512, mode="fallback", tile=tile)
        assert (result["generated"], result["externs"]) == ([], ["mm"]), (tile, reason)
        assert [event["reason"] for event in result["events"]] == [reason], (tile, reason)
