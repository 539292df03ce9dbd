"""`bench layers` and `bench mm` on a GPU: the table's backend in CUDA graphs, unwritten outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LAZY = """
import torch

class Lazy:
    shapes = ((512, 1024),)

    def inputs(self, shape):
        return (torch.randn(shape),)

    def eager(self, x):
        return torch.softmax(x, -1)

    def right(self, x):
        return torch.softmax(x, -1)

    def nothing(self, x):
        return torch.empty_like(x).detach()
"""


def test_layers_and_matmuls_run_from_a_table_in_cuda_graphs(
    run: Callable[..., str], tmp_path: Path
) -> None:
    """RMSNorm and softmax, forward from launch rows of a table; a product from its rows."""
    out = str(tmp_path / "out")
    words = ("layers", "rmsnorm", "softmax", "--backends", "compiled,table")
    run(tmp_path, "-m", "warmup", "bench", *words, "--shapes", "512x1024", "--out", out)
    words = ("mm", "--shapes", "128x512x256", "--rounds", "6")
    run(tmp_path, "-m", "warmup", "bench", *words, "--out", out)
    for name, hits in (("layers", 2), ("mm", 1)):
        found = json.loads((tmp_path / "out" / f"bench-{name}.json").read_text(encoding="utf-8"))
        assert [one["reason"] for one in found["cells"] if one["reason"]] == [], name
        assert sum(one["backend"] == "table" for one in found["cells"]) == hits
        assert all(count > 0 for count in found["table_hits"].values())


def test_a_backend_that_writes_nothing_is_wrong(run: Callable[..., str], tmp_path: Path) -> None:
    """Its output has the memory of the right output before it, which is poisoned in between."""
    (tmp_path / "lazy.py").write_text(LAZY, encoding="utf-8")
    words = (
        "layers",
        f"{tmp_path}/lazy.py:Lazy",
        "--backends",
        "right,nothing",
        "--rounds",
        "6",
    )
    code = (
        "from warmup.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n    print(end)"
    )
    assert "1" in run(tmp_path, "-c", code, "bench", *words, "--out", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "bench-layers.json").read_text(encoding="utf-8"))
    assert [(one["backend"], one["is_wrong"]) for one in found["cells"][:3]] == [
        ("eager", False),
        ("right", False),
        ("nothing", True),
    ]
