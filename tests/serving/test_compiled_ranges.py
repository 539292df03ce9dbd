"""Tables of ranges: built, and served strictly by `warmup.compile`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def said(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    """What the program said of a small MLP."""
    program = str(ROOT / "tests/programs/serve_ranges.py")
    model = f"{ROOT / 'examples/mlp.py'}:MLP"
    found: dict[str, Any] = json.loads(
        run_once("ranges", program, model, "table.json", **variables)[1]
    )
    return found


def test_a_build_tunes_every_interval(said: dict[str, Any]) -> None:
    """Size 1 apart, then up to the bucket; each agrees with eager."""
    names = [name for name, _, _ in said["buckets"]]
    assert names == ["seqlen=1", "seqlen=2..16"]
    assert max(error for _, _, error in said["buckets"]) < 1e-3


def test_a_row_is_about_its_range(said: dict[str, Any]) -> None:
    """A dynamic size is spelled with both ends, in what follows the product too."""
    keys = [key for key in said["keys"] if " m=2..16 " in key]
    assert len(keys) == 2
    assert any("f32[2..16,256]" in key for key in keys)


def test_a_table_of_ranges_answers_all_that_is_asked(said: dict[str, Any]) -> None:
    """Served strictly at five sizes in any order: each row hits, nothing is measured."""
    assert said["hits"] == said["keys"]
    assert (said["misses"], said["uncovered"]) == ({}, {})
    assert said["error"] < 1e-4


def test_each_interval_has_one_artifact(said: dict[str, Any]) -> None:
    """Whatever size of it comes first."""
    assert said["artifacts"] == {"seqlen=1": 1, "seqlen=2..16": 1}


def test_a_row_of_a_range_says_how_its_winner_does_along_it(said: dict[str, Any]) -> None:
    """At the lower end, in the middle, and at the size that it was tuned at."""
    found = {key: [size for size, _ in along] for key, along in said["along"].items()}
    assert found == {key: [2, 9, 16] if " m=2..16 " in key else [] for key in said["keys"]}


def test_the_winner_of_a_range_was_run_at_smaller_sizes(said: dict[str, Any]) -> None:
    """The library's kernel was too, so that there is something to hold it against."""
    for key in (key for key in said["keys"] if " m=2..16 " in key):
        timed = {
            winner: [size for size, _ in times] for winner, times in said["timed"][key].items()
        }
        rivals = [winner for winner, sizes in timed.items() if sizes]
        assert said["winners"][key] in rivals
        assert any(winner.startswith("aten::") for winner in rivals)
        assert all(timed[winner] == [2, 9] for winner in rivals)


def test_a_kernel_that_cannot_be_made_at_a_smaller_size_is_not_timed_there(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> None:
    """With AVX512 the C++ template takes other blocks for 2 rows than for 8; the build goes on."""
    model = f"{ROOT / 'tests/programs/models/stacked.py'}:two"
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", "--model", model)
    words += ("--seqlens", "8", "--policy", "range", "--out", "t.json")
    _, said = run_once("stacked", *words, **variables)
    (problem,) = [one for one in json.loads(said)["problems"] if " m=2..8 " in one["key"]]
    timed = {one["choice"].partition("::")[0]: {*one["along_us"]} for one in problem["candidates"]}
    assert timed["cpp"] <= timed["aten"] == {"2", "5"}


def test_a_build_names_the_guard_inside_a_range(tmp_path: Path, variables: dict[str, str]) -> None:
    """A model that looks at its size within a bucket ends the build, with where and what to do."""
    model = f"{ROOT / 'tests/programs/models/explained.py'}:Doubles"
    words = ("build", "--device", "cpu", "--model", model, "--seqlens", "256", "--policy", "range")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = subprocess.run(
        [sys.executable, "-m", "warmup", *words, "--out", str(tmp_path / "t.json")],
        env={**os.environ, **variables, **caches, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 3
    assert last.startswith("error: sizes seqlen=2..256 cannot share one artifact: ")
    assert "the generated guard 101 <= size" in last
    assert "end a bucket there" in last
