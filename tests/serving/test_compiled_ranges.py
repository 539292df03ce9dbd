"""Tables of ranges: built, and served strictly by `warmup.compile`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def output(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    program = str(ROOT / "tests/programs/serve_ranges.py")
    model = f"{ROOT / 'examples/mlp.py'}:MLP"
    found: dict[str, Any] = json.loads(
        run_once("ranges", program, model, "table.json", **variables)[1]
    )
    return found


def test_a_build_tunes_every_interval_for_its_range(output: dict[str, Any]) -> None:
    """Size 1 apart, then up to the bucket; each agrees with eager, and has both ends in its keys.

    Winners and the library's kernel were timed at the lower end, in the middle and at the end.
    """
    assert [name for name, _, _ in output["buckets"]] == ["seqlen=1", "seqlen=2..16"]
    assert max(error for _, _, error in output["buckets"]) < 1e-3
    ranged = [key for key in output["keys"] if " m=2..16 " in key]
    assert len(ranged) == 2
    assert any("f32[2..16,256]" in key for key in ranged)
    along = {key: [size for size, _ in times] for key, times in output["along"].items()}
    assert along == {key: [2, 9, 16] if key in ranged else [] for key in output["keys"]}
    for key in ranged:
        sizes = {winner: [n for n, _ in times] for winner, times in output["timed"][key].items()}
        rivals = [winner for winner in sizes if sizes[winner]]
        assert output["winners"][key] in rivals
        assert any(winner.startswith("aten::") for winner in rivals)
        assert all(sizes[winner] == [2, 9] for winner in rivals)


def test_a_table_of_ranges_answers_every_question(output: dict[str, Any]) -> None:
    """Served strictly at five sizes in any order: each row hits, nothing is measured."""
    assert output["hits"] == output["keys"]
    assert (output["misses"], output["uncovered"]) == ({}, {})
    assert output["error"] < 1e-4
    assert output["artifacts"] == {"seqlen=1": 1, "seqlen=2..16": 1}


def test_a_kernel_that_cannot_be_made_at_a_smaller_size_is_not_timed_there(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> None:
    """With AVX512 the C++ template takes other blocks for 2 rows than for 8; the build goes on."""
    model = f"{ROOT / 'tests/programs/models/stacked.py'}:two"
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", "--model", model)
    words += ("--seqlens", "8", "--policy", "range", "--out", "t.json")
    _, output = run_once("stacked", *words, **variables)
    (problem,) = [one for one in json.loads(output)["problems"] if " m=2..8 " in one["key"]]
    timed = {one["choice"].partition("::")[0]: {*one["along_us"]} for one in problem["candidates"]}
    assert timed["cpp"] <= timed["aten"] == {"2", "5"}


def test_a_build_names_the_guard_inside_a_range(tmp_path: Path, variables: dict[str, str]) -> None:
    """A model that branches on a size within a bucket ends the build: with place and remedy."""
    model = f"{ROOT / 'tests/programs/models/explained.py'}:Doubles"
    words = ("build", "--device", "cpu", "--model", model, "--seqlens", "256", "--policy", "range")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = run_forked(
        *("-m", "warmup", *words, "--out", str(tmp_path / "t.json")),
        env={**os.environ, **variables, **caches, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 3
    assert last.startswith("error: sizes seqlen=2..256 cannot share one artifact: ")
    assert "the generated guard 101 <= size" in last
