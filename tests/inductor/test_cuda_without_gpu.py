"""Products for a stated H100, on a machine without a GPU: what a row makes of them, and a miss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

PROGRAM = "cuda_gemms.py"
RANGE = [2, 1024]
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
TILE = {**BLOCKS, "num_warps": 4, "num_stages": 3}
Ask = Callable[..., dict[str, Any]]


def names(result: dict[str, Any]) -> list[str]:
    return [event["name"] for event in result["events"]]


def test_a_template_row_is_the_one_choice_generated_and_its_epilogue_fuses(ask: Ask) -> None:
    """One template is generated with the recorded tile, one fused kernel runs, nothing is timed."""
    templates = {"triton": "mm", "tma": "mm_persistent_tma"}
    for m, op, winner in product((512, RANGE), ("mm", "addmm"), templates):
        result = ask(op=op, winner=winner, m=m, epilogue=True, tile=TILE)
        case = (m, op, winner)
        assert result["generated"] == [templates[winner]], case
        assert (result["launches"], result["externs"]) == (["triton_tem_fused_0"], []), case
        assert (result["tile"], names(result)) == (BLOCKS, ["lookup.hit"]), case
        assert not [guard for guard in result["guards"] if guard.startswith("Eq(")], case


def test_a_template_row_reads_a_padded_operand(ask: Ask) -> None:
    """The row of a GEMM whose result is returned hits, and its kernel reads rows 3456 apart."""
    for visible in (False, True):
        open_one = {"m": 64, "n": 256, "k": 3420, "produced": True, "visible": visible}
        result = ask(op="addmm", winner="triton", **open_one)
        assert result["rows_apart"] == {"stated": [3456], "read": [3456]}, visible
        assert names(result) == ["lookup.hit"], visible


def test_the_other_ops_take_template_rows(ask: Ask) -> None:
    for op in ("bmm", "baddbmm", "mm_plus_mm", "int_mm", "scaled_mm"):
        result = ask(op=op, winner="triton", m=64, epilogue=True, tile=TILE)
        found = (len(result["generated"]), result["tile"], names(result))
        assert found == (1, BLOCKS, ["lookup.hit"]), op


def test_a_decompose_k_row_is_split_as_recorded(ask: Ask) -> None:
    """A decompose_k row lowers to a batched GEMM and a sum; no Triton template is generated."""
    result = ask(op="mm", winner="decompose_k", m=32, tile={"k_split": 16})
    assert (result["generated"], result["externs"]) == ([], ["bmm_dtype"])
    assert list(result["rows"].values()) == ["decompose_k(k_split=16)"]
    assert names(result) == ["lookup.hit"]


def test_a_library_row_generates_no_template(ask: Ask) -> None:
    """An ATen row calls the library, keeps the epilogue in its own kernel, and times nothing."""
    for m, op in product((512, RANGE), ("mm", "addmm")):
        result = ask(op=op, winner="extern", m=m, epilogue=True)
        assert (result["generated"], result["externs"]) == ([], [op]), (m, op)
        assert result["launches"] == ["triton_poi_fused_0"], (m, op)
        assert names(result) == ["lookup.hit"], (m, op)


def test_a_miss_calls_the_library_or_is_an_error(ask: Ask) -> None:
    """In fallback serving one miss, without generating a template; in strict serving an error."""
    result = ask(op="addmm", winner="none", m=512, mode="fallback")
    first = "bias_addmm" if torch.__version__.startswith("2.11.") else "addmm"
    assert (result["generated"], result["externs"]) == ([], [first])
    (event,) = result["events"]
    assert (event["name"], event["reason"]) == ("lookup.missed", "not_in_table")
    assert ask(op="mm", winner="none", m=512)["error"].startswith("MissError: no row")


def test_a_row_that_does_not_fit_this_torch_is_a_miss(ask: Ask) -> None:
    """Kwargs that the installed template lacks, or that are untrue, never reach a kernel."""
    for tile, reason in (
        ({"ACC_TYPE": "tl.float16"}, "choice_rejected"),
        ({"NUM_CTAS": 2}, "template_changed"),
        ({"BLOCK_K": 48}, "choice_rejected"),
    ):
        result = ask(op="mm", winner="triton", m=512, mode="fallback", tile=tile)
        assert (result["generated"], result["externs"]) == ([], ["mm"]), tile
        assert [event["reason"] for event in result["events"]] == [reason], tile


def test_an_import_generates_the_given_config_alone(ask: Ask) -> None:
    """The search ``imported`` tries the config and the library's kernels, and leaves out others."""
    config = {**TILE, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8}
    problem = {"op": "addmm", "m": 1376, "n": 768, "k": 3072}
    found = ask(**problem, search="imported", asked=True, imported=[config])
    templates = [name for name in found["short"] if not name.startswith("aten::")]
    assert templates == ["triton::mm 64x64x64 w8 s3"]
    assert (found["generated"], found["word"]) == (["mm"], "imported")
    assert found["left_out"] > 40
