"""Torch's own lookup table and AutoHeuristic, alone and beside a table of warmup's.

What docs/explanation/torch.md says of them. Each case is one line to
tests/programs/cuda_torch_table.py: one product, real inductor, a stated H100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.lookup_table import LookupTableChoices

pytest.importorskip("triton")

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
IS_2_11 = torch.__version__.startswith("2.11.")  # lists all choices of an addmm at once
MM = {"op": "mm", "m": 512}
ADDMM = {"op": "addmm", "m": 512}
OURS = {"winner": "triton", "tile": {"BLOCK_M": 64}}
THEIRS = {"BLOCK_M": 128}
HANDLER = ("policy.contradicted", "")  # names torch's handler
Lower = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def lower(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lower]:
    """``lower(op="mm", ...)``: lower one case in the program, and what it prints."""
    with conversation("cuda_torch_table.py", tmp_path_factory.mktemp("tables")) as ask:
        yield ask


def served(result: dict[str, Any]) -> Any:
    """Return the tile that is served, or the library calls."""
    return result["tile"]["BLOCK_M"] if result["tile"] else result["externs"]


def events(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return each event with its reason, empty where it has none."""
    return [(event["name"], event.get("reason", "")) for event in result["events"]]


# -- torch's table alone ---------------------------------------------------------------------------


def test_one_entry_leaves_one_choice_and_several_are_measured(lower: Lower) -> None:
    """Inductor measures nothing for one entry; it measures two, and everything without an entry."""
    assert lower(**MM, alone=True, theirs=[THEIRS])["choices"] == 1
    assert lower(**MM, alone=True, theirs=[THEIRS, {"BLOCK_M": 32}])["choices"] == 2
    assert lower(**MM, alone=True, theirs=[])["choices"] > 2


def test_the_entry_of_an_addmm_is_measured_against_the_library(lower: Lower) -> None:
    """From torch 2.12 on the library's call has a key of its own, with the bias as it is."""
    expected = 1 if IS_2_11 else 2
    assert lower(**ADDMM, alone=True, theirs=[THEIRS])["choices"] == expected


def test_a_filled_table_does_nothing_without_its_handler(lower: Lower) -> None:
    """Filling the option is not enough: inductor's own handler never reads it."""
    filled = lower(**MM, alone=True, theirs=[THEIRS], handler=False)["choices"]
    assert filled == lower(**MM, alone=True, theirs=[])["choices"]


def test_its_key_has_the_size_hint_and_no_epilogue(lower: Lower) -> None:
    """What follows a product is not in the key, and a range is the one size of its example."""
    (key,) = lower(**MM, alone=True)["keys"]
    assert lower(**MM, alone=True, epilogue=True)["keys"] == [key]
    assert lower(op="mm", m=[2, 1024], alone=True)["keys"] == [key.replace("512", "513")]


@pytest.mark.skipif(IS_2_11, reason="an entry must be complete there")
def test_what_an_entry_leaves_out_is_not_made_to_fit(lower: Lower) -> None:
    """Torch's first config has EVEN_K for its own BLOCK_K, 16; 32 does not divide this K."""
    result = lower(**MM, k=1040, alone=True, theirs=[{"BLOCK_K": 32}], short=True)
    assert result["constants"] == {"BLOCK_K": "32", "EVEN_K": "True"}


def test_it_has_no_key_on_a_cpu() -> None:
    """On a CPU there is no device key, without which torch looks nothing up."""
    assert LookupTableChoices._get_device_key(torch.device("cpu")) is None


# -- a table of warmup's, exported -----------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        {"op": "mm"},
        {"op": "mm", "linear": True, "gap": 8},
        {"op": "mm", "winner": "extern"},
        {"op": "mm", "dtype": "float32"},
        {"op": "int_mm"},
        {"op": "addmm"},
        {"op": "bmm"},
        {"op": "bmm", "winner": "extern"},
        {"op": "baddbmm"},
        {"op": "mm_plus_mm"},
    ],
    ids=lambda case: " ".join(map(str, case.values())),
)
def test_torch_finds_an_exported_row_under_the_key_that_it_makes_itself(
    lower: Lower, case: dict[str, Any]
) -> None:
    """Inductor has the row's kernel alone, without warmup; of an addmm the library's too."""
    case = {"m": 512, "winner": "triton", **case}
    tile = {"BLOCK_K": 32} if case["winner"] == "triton" else {}
    result = lower(**case, tile=tile, alone=True, exported=True)
    assert result["keys"] == result["torch_keys"] != []
    assert result["choices"] == (2 if case["op"] == "addmm" and not IS_2_11 else 1)
    if tile and case["op"] != "addmm":  # the first choice of an addmm is the library's
        assert result["constants"]["BLOCK_K"] == "32"


# -- both ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("winner", "reason"),
    [("triton", "template_absent"), ("extern", "template_absent"), ("none", "not_in_table")],
)
def test_an_entry_of_torch_in_the_place_of_a_row_is_a_miss(
    lower: Lower, winner: str, reason: str
) -> None:
    """Torch's kernel is served, as a miss that names the handler once; strict refuses."""
    tile = OURS["tile"] if winner == "triton" else {}
    case = {**MM, "winner": winner, "tile": tile, "theirs": [THEIRS]}
    result = lower(**case, mode="fallback")
    assert (served(result), events(result)) == (128, [HANDLER, ("lookup.missed", reason)])
    assert lower(**case)["error"].startswith("MissError")


def test_an_entry_of_the_rows_own_kernel_is_a_hit(lower: Lower) -> None:
    """Where both tables name one kernel the row hits, also among other entries."""
    for theirs in ([{"BLOCK_M": 64}], [THEIRS, {"BLOCK_M": 64}]):
        result = lower(**MM, **OURS, theirs=theirs)
        assert (served(result), events(result)) == (64, [("lookup.hit", "")])


@pytest.mark.parametrize(
    ("winner", "reason"), [("extern", "template_absent"), ("none", "not_in_table")]
)
def test_several_entries_without_the_rows_kernel_are_a_miss(
    lower: Lower, winner: str, reason: str
) -> None:
    """No library kernel is left to fall back to: the first entry is served; strict refuses."""
    case = {**MM, "winner": winner, "theirs": [THEIRS, {"BLOCK_M": 64}]}
    result = lower(**case, mode="fallback")
    assert (served(result), events(result)) == (128, [HANDLER, ("lookup.missed", reason)])
    assert lower(**case)["error"].startswith("MissError")


def test_for_an_addmm_a_row_of_the_library_hits(lower: Lower) -> None:
    """From torch 2.12 on the library's call is not torch's table's, and the row takes it."""
    result = lower(**ADDMM, winner="extern", theirs=[THEIRS], mode="fallback")
    missed = (128, [HANDLER, ("lookup.missed", "template_absent")])
    expected = missed if IS_2_11 else (["addmm"], [("lookup.hit", "")])
    assert (served(result), events(result)) == expected


@pytest.mark.parametrize(
    ("winner", "reason"), [("triton", "template_absent"), ("none", "not_in_table")]
)
def test_for_an_addmm_another_template_is_a_miss(lower: Lower, winner: str, reason: str) -> None:
    """From torch 2.12 on neither table's kernel is served, but the library's; the miss says so."""
    tile = OURS["tile"] if winner == "triton" else {}
    result = lower(**ADDMM, winner=winner, tile=tile, theirs=[THEIRS], mode="fallback")
    missed = ("lookup.missed", reason)
    expected = (128, [HANDLER, missed]) if IS_2_11 else (["addmm"], [missed])
    assert (served(result), events(result)) == expected


@pytest.mark.parametrize("case", [{"theirs": []}, {"theirs": [THEIRS], "handler": False}])
def test_what_torchs_table_does_not_answer_a_row_does(lower: Lower, case: dict[str, Any]) -> None:
    """Torch's handler without an entry, and an entry without the handler, change nothing."""
    result = lower(**MM, **OURS, **case)
    assert (served(result), events(result)) == (64, [("lookup.hit", "")])


def test_a_build_measures_only_what_torchs_table_leaves(lower: Lower) -> None:
    """One entry leaves nothing to measure, so that no row is made; several are all there is."""
    assert lower(**MM, mode="tune", theirs=[THEIRS])["measured"] == []
    both = lower(**MM, mode="tune", theirs=[THEIRS, {"BLOCK_M": 64}])["measured"]
    assert ["BLOCK_M=128" in both[0], "BLOCK_M=64" in both[1], len(both)] == [True, True, 2]
    addmm = lower(**ADDMM, mode="tune", theirs=[THEIRS])["measured"]
    assert addmm[:1] == ([] if IS_2_11 else ["aten::addmm"])
    assert len(addmm) == (0 if IS_2_11 else 2)


def test_autoheuristic_leaves_rows_of_the_kernels_that_it_ranks(lower: Lower) -> None:
    """Where it ranks products, a row of a template outside its list misses; others hit."""
    sizes = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    for block_k, expected in (
        (128, (64, [("lookup.hit", "")])),  # in the list of this torch for an H100
        (32, (["mm"], [("lookup.missed", "template_absent")])),
    ):
        tile = {**sizes, "BLOCK_K": block_k}
        case = {**MM, "winner": "triton", "tile": tile, "mode": "fallback"}
        assert events(lower(**case)) == [("lookup.hit", "")]
        result = lower(**case, ranked=True)
        assert (served(result), events(result)) == expected
