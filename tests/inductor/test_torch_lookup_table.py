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
