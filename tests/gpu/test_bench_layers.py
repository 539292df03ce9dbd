"""`bench layers` and `bench mm` on a GPU: the table's column, Triton kernels, parts of the host."""

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
        return torch.empty_like(x)
"""


def test_a_table_and_the_triton_kernels_run_in_cuda_graphs(
    run: Callable[..., str], tmp_path: Path
) -> None:
    """RMSNorm and softmax, forward from launch rows of a table; both passes on the kernels."""
    command = ("-m", "warmup", "bench", "layers", "--layers", "rmsnorm,softmax", "--no-charts")
    words = ("--backends", "compiled,table,triton", "--shapes", "512x1024", "--rounds", "6")
    run(tmp_path, *command, *words, "--out", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "bench-layers.json").read_text(encoding="utf-8"))
    assert [one["reason"] for one in found["cells"] if one["reason"]] == []
    assert {one["backend"] for one in found["cells"]} == {"eager", "compiled", "table", "triton"}
    assert all(hits > 0 for hits in found["table_hits"].values())


def test_a_backend_that_writes_nothing_is_wrong(run: Callable[..., str], tmp_path: Path) -> None:
    """Its output has the memory of the right output before it, which is poisoned in between."""
    (tmp_path / "lazy.py").write_text(LAZY, encoding="utf-8")
    command = ("-m", "warmup", "bench", "layers", "--layer", f"{tmp_path / 'lazy.py'}:Lazy")
    words = ("--backends", "right,nothing", "--rounds", "6", "--no-backward", "--no-charts")
    run(tmp_path, *command, *words, "--out", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "bench-layers.json").read_text(encoding="utf-8"))
    assert [(one["backend"], one["is_wrong"]) for one in found["cells"]] == [
        ("eager", False),
        ("right", False),
        ("nothing", True),
    ]


def test_the_parts_of_the_host_time_are_there(run: Callable[..., str], tmp_path: Path) -> None:
    """Each compiled column has guards, an allocation and a launch within its host time."""
    command = ("-m", "warmup", "bench", "mm", "--shapes", "128x512x256", "--dtype", "f32")
    run(tmp_path, *command, "--rounds", "6", "--no-charts", "--out", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "bench-mm.json").read_text(encoding="utf-8"))
    columns = found["shapes"][0]["columns"]
    assert "torch-tf32" in columns
    for name in ("inductor-aten", "inductor-triton", "table"):
        split = columns[name]["host_us"]
        assert min(split["guards"], split["allocation"], split["launch"]) > 0
        assert split["guards"] + split["allocation"] + split["launch"] < split["total"]
