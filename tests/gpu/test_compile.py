"""`warmup.compile` on a GPU: padded calls replay CUDA graphs, ranges are served from a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_padded_calls_replay_the_graph_of_their_bucket(run: Run, tmp_path: Path, mode: str) -> None:
    """Six sizes in two buckets: each call replays a graph, and is right whatever its size."""
    found = json.loads(run(tmp_path, "tests/programs/serve_padded.py", mode).splitlines()[-1])
    assert (found["replays"], found["records"]) == (6, 0)
    assert found["artifacts"] == {"n=16": 1, "n=64": 1}
    assert found["outside"] == {}
    assert found["error"] < 5e-3


@pytest.fixture(scope="module")
def ranged(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of a table of ranges for a small MLP, built and served strictly."""
    folder = tmp_path_factory.mktemp("ranged")
    program = ("tests/programs/serve_ranges.py", "examples/mlp.py:MLP", str(folder / "t.json"))
    said: dict[str, Any] = json.loads(run(folder, *program, "cuda").splitlines()[-1])
    return said


def test_ranges_are_served_from_their_rows(ranged: dict[str, Any]) -> None:
    """Every row hits, nothing misses or is measured, and the outputs are eager's."""
    assert ranged["hits"] == ranged["keys"]
    assert (ranged["misses"], ranged["uncovered"]) == ({}, {})
    assert ranged["error"] < 5e-3


def test_a_range_has_one_artifact_on_a_gpu(ranged: dict[str, Any]) -> None:
    """Whatever size of it comes first."""
    assert ranged["artifacts"] == {"seqlen=1": 1, "seqlen=2..16": 1}


def test_a_winner_was_timed_along_its_range(ranged: dict[str, Any]) -> None:
    found = [[size for size, _ in along] for along in ranged["along"].values() if along]
    assert found
    assert all(sizes == [2, 9, 16] for sizes in found)
