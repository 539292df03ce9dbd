"""`bench layers` and `bench mm` on a CPU: real compiles, builds and servings of small layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from own_processes import warmup_in

pytestmark = pytest.mark.nightly

LINEAR = """
import torch
from torch import nn

class Linear(nn.Module):
    shapes = ((16, 64),)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 64))

    def inputs(self, shape):
        return (torch.randn(shape),)

    def eager(self, x):
        return nn.functional.linear(x, self.weight)
"""
SMALL = ("--dtype", "f32", "--rounds", "2", "--device", "cpu", "--out", "out")


def bench(folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    done = warmup_in(folder, "bench", *words, *SMALL)
    return json.loads((folder / "out" / f"bench-{words[0]}.json").read_text()), done.stdout


def test_a_users_linear_is_served_from_a_table(tmp_path: Path) -> None:
    """Its weights are constant: a row answers without a miss, and forward is timed."""
    (tmp_path / "linear.py").write_text(LINEAR, encoding="utf-8")
    found, text = bench(tmp_path, "layers", "linear.py:Linear", "--backends", "custom,table")
    assert [(one["pass"], one["backend"], one["reason"]) for one in found["cells"]] == [
        ("forward", "eager", None),
        ("forward", "custom", None),
        ("forward", "table", None),
        ("forward+backward", "eager", None),
        ("forward+backward", "custom", None),
    ]
    assert found["table_hits"] == {"Linear": 1}
    assert "hits Linear 1, 0 misses" in text
    table = tmp_path / "out" / "bench-layers-table.json"
    written = table.read_bytes()
    found, _ = bench(
        tmp_path,
        *("layers", "linear.py:Linear", "--backends", "table"),
        *("--table", str(table), "--shapes", "16x64"),
    )
    assert found["table_hits"] == {"Linear": 1}
    assert table.read_bytes() == written


def test_every_layer_is_timed_with_its_gradients(tmp_path: Path) -> None:
    found, _ = bench(tmp_path, "layers", "--shapes", "16x64", "--backends", "compiled")
    names = ["rmsnorm", "softmax", "cross-entropy", "swiglu", "layernorm"]
    assert [(one["layer"], one["pass"], one["backend"]) for one in found["cells"]] == [
        (name, step, backend)
        for name in names
        for step in ("forward", "forward+backward")
        for backend in ("eager", "compiled")
    ]
    assert [one["reason"] for one in found["cells"] if one["time_us"] is None] == []
    assert all(one["relative_l2_error"] <= 1e-5 for one in found["cells"])


def test_matmuls_are_timed_on_every_backend(tmp_path: Path) -> None:
    found, _ = bench(tmp_path, "mm", "--shapes", "64x32x48")
    backends = ["eager", "max-autotune", "cpp-template", "table"]
    assert [(one["backend"], one["reason"]) for one in found["cells"]] == [
        (name, None) for name in backends
    ]
    assert all(one["tflops"] > 0 and one["relative_l2_error"] < 1e-5 for one in found["cells"])
    assert (found["table_hits"], found["launch"], found["l2"]) == ({"mm": 1}, "eager", "warm")
