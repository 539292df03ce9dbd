"""Outputs that are far from eager's, with good reason or because of one row: real builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, PROGRAMS, answer_of

from warmup.table.store import read

pytestmark = pytest.mark.long

WRONG = "mm m=24 n=64 k=24 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
SHARED = "packed_linear m=48 n=48 k=48 f32 a=row b=packed out=f32 fp32=ieee | epilogue=none"
ALONE = ("--set", "fused_top_k=0")  # how a row is measured is not the matter
RunOnce = Callable[..., tuple[Path, Any]]
Builds = list[dict[str, Any]]


@pytest.fixture(scope="module")
def builds(run_once: RunOnce, variables: dict[str, str]) -> Builds:
    """What is left by a build whose winner for `WRONG` is wrong, and by the next build."""
    program = str(PROGRAMS / "build_with_wrong_row.py")
    words = (f"{MODELS / 'towers.py'}:Towers", "16,24", "t.json", "mm_m=24_n=64", "--", "24")
    _, said = run_once("wrong-row", program, *words, **variables)
    found: Builds = answer_of(said)
    return found


def test_the_row_to_blame_is_found_by_bisection(builds: Builds) -> None:
    """It alone is marked, with the reason, and keeps its winner and its time; each step is told.

    The bucket is right without it. A row that two buckets share serves both, and is not marked.
    """
    first = builds[0]
    assert [*first["untrusted"]] == [*first["distrusted"]] == [WRONG]
    assert "away from float64 eager on cpu" in first["untrusted"][WRONG]
    assert first["buckets"]["seqlen=24"][1]["error"] < 1e-5
    assert {name for name, *_ in first["tried"]} == {"seqlen=24"}
    assert 3 <= len(first["tried"]) <= 4
    (line,) = first["lines"]
    assert line.startswith(f"seqlen=24: 1 of 4 rows is not trusted: {WRONG}: with it the output is")
    assert sorted(first["winners"]) == sorted(first["tuned"])
    assert first["winners"][WRONG] == "aten::wrong_mm"
    assert min(first["times"].values()) > 0
    served = {key for keys, _ in first["buckets"].values() for key in keys}
    assert served == first["winners"].keys() - {WRONG}
    assert all(SHARED in keys for keys, _ in first["buckets"].values())


def test_the_next_build_measures_the_marked_key_without_its_winner(builds: Builds) -> None:
    """Nothing else is measured; the new winner is trusted and served."""
    then = builds[1]
    assert (then["tuned"], then["untrusted"], then["lines"]) == ([WRONG], {}, [])
    assert then["winners"][WRONG] == "aten::mm"
    assert WRONG in then["buckets"]["seqlen=24"][0]


def test_rounding_alone_fails_no_build(build_once: RunOnce) -> None:
    """Beyond the constant for bf16, but no further from float32 than 1.5 times eager."""
    model = ("--model", f"{MODELS / 'contrast.py'}:Contrast", "--seqlens", "16", "--dtype", "bf16")
    path, said = build_once("contrast", *model, *ALONE)
    judgement = said["buckets"][0]["judgement"]
    assert judgement["reference"] == "float32 eager on cpu"
    assert read(path).policy.tolerance["bf16"] < judgement["error"]
    assert judgement["error"] <= judgement["limit"] == pytest.approx(1.5 * judgement["eager"])
    assert {row.untrusted for row in read(path).rows.values()} == {None}
