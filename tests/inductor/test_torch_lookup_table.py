"""Torch's own lookup table and AutoHeuristic, alone and beside a table of warmup's.

What docs/explanation/torch.md says of them: one product, real inductor, a stated H100.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

pytestmark = pytest.mark.long

PROGRAM = "cuda_gemms.py"
IS_2_11 = torch.__version__.startswith("2.11.")  # lists all choices of an addmm at once
MM = {"op": "mm", "m": 512}
ADDMM = {"op": "addmm", "m": 512}
OURS = {"winner": "triton", "tile": {"BLOCK_M": 64}}
THEIRS, SAME = {"BLOCK_M": 128}, {"BLOCK_M": 64}
HIT = ("lookup.hit", "")
HANDLER = ("policy.contradicted", "")  # names torch's handler
Ask = Callable[..., dict[str, Any]]
Served = tuple[Any, list[tuple[str, str]]]


def served(result: dict[str, Any]) -> Served:
    """Return the tile that is served, or the library calls; and each event with its reason."""
    events = [(event["name"], event.get("reason", "")) for event in result["events"]]
    return result["tile"]["BLOCK_M"] if result["tile"] else result["externs"], events


# -- torch's table alone ---------------------------------------------------------------------------


def test_one_entry_leaves_one_choice_and_several_are_measured(ask: Ask) -> None:
    """Inductor measures nothing for one entry; without one, or without its handler, everything."""
    every = ask(**MM, alone=True, theirs=[])["choices"]
    assert every > 2
    assert ask(**MM, alone=True, theirs=[THEIRS])["choices"] == 1
    assert ask(**MM, alone=True, theirs=[THEIRS, {"BLOCK_M": 32}])["choices"] == 2
    assert ask(**MM, alone=True, theirs=[THEIRS], handler=False)["choices"] == every
    # From torch 2.12 on the library's addmm has a key of its own, with the bias as it is.
    assert ask(**ADDMM, alone=True, theirs=[THEIRS])["choices"] == (1 if IS_2_11 else 2)


# -- a table of warmup's, exported -----------------------------------------------------------------


def test_torch_finds_an_exported_row_under_the_key_that_it_makes_itself(ask: Ask) -> None:
    """Inductor has the row's kernel alone, without warmup; of an addmm the library's too."""
    products = ("mm", "int_mm", "addmm", "bmm", "baddbmm", "mm_plus_mm")
    cases: list[dict[str, Any]] = [{"op": op} for op in products]
    cases += [{"op": op, "winner": "extern"} for op in ("mm", "bmm")]
    cases += [{"op": "mm", "linear": True, "gap": 8}, {"op": "mm", "dtype": "float32"}]
    for named in cases:
        case = {"m": 512, "winner": "triton", **named}
        tile = {"BLOCK_K": 32} if case["winner"] == "triton" else {}
        result = ask(**case, tile=tile, alone=True, exported=True)
        assert result["keys"] == result["torch_keys"] != [], named
        has_library_too = case["op"] == "addmm" and not IS_2_11
        assert result["choices"] == (2 if has_library_too else 1), named
        if tile and case["op"] != "addmm":  # the first choice of an addmm is the library's
            assert result["constants"]["BLOCK_K"] == "32", named


# -- both ------------------------------------------------------------------------------------------


def test_without_the_rows_kernel_an_entry_of_torch_is_served_as_a_miss(ask: Ask) -> None:
    """The miss names the handler once; no library kernel is left to fall back to; strict refuses.

    Of several entries the first is served.
    """
    for winner, entries, reason in (
        ("triton", [THEIRS], "template_absent"),
        ("extern", [THEIRS], "template_absent"),
        ("none", [THEIRS], "not_in_table"),
        ("extern", [THEIRS, SAME], "template_absent"),
        ("none", [THEIRS, SAME], "not_in_table"),
    ):
        tile = OURS["tile"] if winner == "triton" else {}
        case = {**MM, "winner": winner, "tile": tile, "theirs": entries}
        found = served(ask(**case, mode="fallback"))
        assert found == (128, [HANDLER, ("lookup.missed", reason)]), (winner, entries)
        assert ask(**case)["error"].startswith("MissError"), (winner, entries)


def test_a_row_hits_where_torchs_table_leaves_its_kernel(ask: Ask) -> None:
    """Also among other entries; without an entry, or without the handler, nothing changes."""
    for case in (
        {"theirs": [SAME]},
        {"theirs": [THEIRS, SAME]},
        {"theirs": []},
        {"theirs": [THEIRS], "handler": False},
    ):
        assert served(ask(**MM, **OURS, **case)) == (64, [HIT]), case


def test_an_entry_for_an_addmm_leaves_the_librarys_kernel(ask: Ask) -> None:
    """From torch 2.12 on a row of the library hits, and another template is a miss."""
    for winner, reason in (
        ("extern", "template_absent"),
        ("triton", "template_absent"),
        ("none", "not_in_table"),
    ):
        tile = OURS["tile"] if winner == "triton" else {}
        result = ask(**ADDMM, winner=winner, tile=tile, theirs=[THEIRS], mode="fallback")
        missed = ("lookup.missed", reason)
        expected: Served = (["addmm"], [HIT if winner == "extern" else missed])
        assert served(result) == ((128, [HANDLER, missed]) if IS_2_11 else expected), winner


def test_a_build_measures_only_what_torchs_table_leaves(ask: Ask) -> None:
    """One entry leaves nothing to measure, so that no row is made; several are all there is."""
    assert ask(**MM, asked=True, theirs=[THEIRS])["measured"] == []
    first, second = ask(**MM, asked=True, theirs=[THEIRS, SAME])["measured"]
    assert ["BLOCK_M=128" in first, "BLOCK_M=64" in second] == [True, True]
    addmm = ask(**ADDMM, asked=True, theirs=[THEIRS])["measured"]
    assert addmm[:1] == ([] if IS_2_11 else ["aten::addmm"])
    assert len(addmm) == (0 if IS_2_11 else 2)


def test_autoheuristic_leaves_rows_of_the_kernels_that_it_ranks(ask: Ask) -> None:
    """Where it ranks products, a row of a template outside its list misses; others hit."""
    sizes = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    for block_k, expected in (
        (128, (64, [HIT])),  # in the list of this torch for an H100
        (32, (["mm"], [("lookup.missed", "template_absent")])),
    ):
        tile = {**sizes, "BLOCK_K": block_k}
        case = {**MM, "winner": "triton", "tile": tile, "mode": "fallback", "theirs": []}
        assert served(ask(**case))[1] == [HIT], block_k
        assert served(ask(**case, ranked=True)) == expected, block_k
