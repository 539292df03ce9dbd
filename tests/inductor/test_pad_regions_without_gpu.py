"""Regions of unaligned GEMMs: cut on a stated H100, and lowered both ways, as a build does."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/cuda_pad_regions.py")
CASES = ("linear", "gated", "conv1d", "shared", "batched")
KEYS = (
    "pad mm m=560 n=1280 k=3420 bf16 a=row b=col",
    "pad mm m=560 n=1280 k=3420 bf16 a=row b=row free=a",
    "pad addmm m=560 n=1284 k=3420 f16 a=row b=col bias=1d free=a",
    "pad mm m=1604 n=1284 k=3421 f32 a=col b=row free=b fp32=ieee",
    "pad bmm batch=4 m=560 n=772 k=1284 bf16 a=row b=row free=ab",
)
WAYS = ("as_is", "padded")
Run = Callable[..., Any]
Case = dict[str, Any]

pytest.importorskip("triton")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cases(run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    found: dict[str, Case] = run_program(tmp_path_factory.mktemp("caches"), PROGRAM, *CASES, *KEYS)
    return found


def question(cases: dict[str, Case], name: str, words: str) -> Case:
    """Return the question of a case whose key begins with *words*."""
    (found,) = [one for one in cases[name]["questions"] if one["key"].startswith(words)]
    assert isinstance(found, dict)
    return found


def test_a_region_is_decided_by_the_question_of_its_model(cases: dict[str, Case]) -> None:
    for way, name in product(WAYS, CASES):
        assert cases[name]["questions"], (way, name)
        for one in cases[name]["questions"]:
            assert (one["reason"], one["key"] in one["keys"]) == ("", True), (way, name)
            assert {f"{key} -> {way}" for key in one["keys"]} & set(one[way]["hits"]), (way, name)


def test_a_region_runs_the_gemms_of_its_model(cases: dict[str, Case]) -> None:
    for way, name in product(WAYS, [name for name in CASES if name != "gated"]):
        asked = [one[way]["gemms"] for one in cases[name]["questions"]]
        assert sorted(key for keys in asked for key in keys) == cases[name]["whole"][way]


def test_the_other_product_of_a_gate_stays_as_its_own_row_says(cases: dict[str, Case]) -> None:
    """Both are in the region of either; only the one in question is padded there."""
    gate = question(cases, "gated", "pad mm m=560 n=3420")
    assert gate["as_is"] == question(cases, "gated", "pad addmm")["as_is"]
    assert [key for key in gate["padded"]["gemms"] if " n=3420 " in key] == [
        key for key in gate["as_is"]["gemms"] if key.startswith("addmm")
    ]


def test_what_makes_an_operand_is_in_its_region(cases: dict[str, Case]) -> None:
    """The gate's operations compute the operand, and its padding is fused into them."""
    down = question(cases, "gated", "pad mm m=560 n=1280")
    steps = down["steps"]
    assert "aten.exp.default" in steps[: steps.index("aten.mm.default")]
    assert steps[-1] == "aten.add.Tensor"
    # Its reduction too, though it has two results, so that the region starts at its input.
    steps = question(cases, "conv1d", "pad addmm")["steps"]
    assert "aten.var_mean.correction" in steps[: steps.index("aten.addmm.default")]
    # The normed activation is written for the other product too; what it is made of is not.
    normed = "prims.convert_element_type.default"
    key = question(cases, "shared", "pad mm m=560 n=772")
    assert key["outputs"] == [normed, "aten.relu.default"]
    assert key["steps"].count(normed) == 2


def test_a_module_made_of_a_pad_key_asks_for_that_key(cases: dict[str, Case]) -> None:
    """Its region runs the GEMM as it is, and padded to multiples of 8 (4 in f32) without rows."""
    for key in KEYS:
        (one,) = cases[key]["questions"]
        assert (one["key"], one["reason"]) == (key, "")
        asked = [text for text in one["padded"]["gemms"] if text not in one["as_is"]["gemms"]]
        alignment = 4 if " f32 " in key else 8
        sizes = [int(text) for text in re.findall(r" [nk]=([0-9]+)", asked[0])]
        assert [size % alignment for size in sizes] == [0, 0], key
