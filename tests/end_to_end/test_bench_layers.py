"""`warmup bench layers` on a CPU, in a process of its own: real compiles, small shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import run_forked

from warmup.core.runtime import slug_of

pytestmark = pytest.mark.long

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import typer
from warmup.cli.bench_layers import layers

app = typer.Typer()
app.command()(layers)
app()
"""


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


def test_a_users_linear_is_served_from_a_table(tmp_path: Path) -> None:
    """Its weights are constant: a row answers, forward is timed, the table is kept; custom too."""
    (tmp_path / "linear.py").write_text(LINEAR, encoding="utf-8")
    arguments = [
        *("--layer", "linear.py:Linear", "--dtype", "f32", "--rounds", "2", "--device", "cpu"),
        *("--backends", "custom,table", "--no-charts", "--out", "out"),
    ]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **caches}
    done = run_forked("-c", PROGRAM, *arguments, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "bench-layers.json").read_text(encoding="utf-8"))
    timed = [(one["pass"], one["backend"], one["reason"]) for one in found["cells"]]
    assert timed == [
        ("forward", "eager", None),
        ("forward", "custom", None),
        ("forward", "table", None),
        ("forward+backward", "eager", None),
        ("forward+backward", "custom", None),
    ]
    assert found["table_hits"] == {"Linear": 1}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"bench-layers.json", "bench-layers-table.json"}


def test_every_layer_is_timed_on_eager_and_on_inductor(tmp_path: Path) -> None:
    """All layers, forward and backward: the document has times, the folder has the charts."""
    arguments = [
        *("--shapes", "16x64", "--dtype", "f32", "--rounds", "2", "--device", "cpu"),
        *("--backends", "compiled", "--out", str(tmp_path / "out")),
    ]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **caches}
    done = run_forked("-c", PROGRAM, *arguments, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "bench-layers.json").read_text(encoding="utf-8"))
    names = ["rmsnorm", "softmax", "cross-entropy", "swiglu", "layernorm"]
    timed = [(one["layer"], one["pass"], one["backend"]) for one in found["cells"]]
    assert timed == [
        (name, step, backend)
        for name in names
        for step in ("forward", "forward+backward")
        for backend in ("eager", "compiled")
    ]
    assert [one["reason"] for one in found["cells"] if one["time_us"] is None] == []
    assert all(one["relative_l2_error"] <= 1e-3 for one in found["cells"])
    drawn = [*names, f"roofline-{slug_of(found['provenance']['device'])}"]
    charts = {f"bench-layers-{name}.{end}" for name in drawn for end in ("png", "svg")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*charts, "bench-layers.json"}
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "speed-up over eager" in done.stdout


def test_what_is_measured_is_kept_when_it_is_ended(tmp_path: Path) -> None:
    """SIGTERM while the second shape is measured: the document has the first, the code is 143."""
    arguments = [
        *("--shapes", "16x64,32x64", "--dtype", "f32", "--rounds", "2", "--device", "cpu"),
        *("--layers", "softmax", "--backends", "compiled", "--no-backward"),
        *("--out", str(tmp_path / "out")),
    ]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("2/2"):
                process.terminate()
                break
        said = process.stderr.read()
    found = json.loads((tmp_path / "out" / "bench-layers.json").read_text(encoding="utf-8"))
    assert process.returncode == 143
    assert f"interrupted: finished shapes are printed, and in {tmp_path / 'out'}" in said
    assert {one["rows"] for one in found["cells"]} == {16}
