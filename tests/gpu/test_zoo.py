"""Tiny models of transformers and timm, built on a GPU and served from their tables alone.

How fast they are at serving sizes, docs/benchmarks/zoo.py measures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and find_spec("transformers") and find_spec("timm")),
    reason="needs a GPU, transformers and timm",
)

ROOT = Path(__file__).resolve().parents[2]
# Plain and tied heads, a Conv1D, LayerNorms that are shifted and scaled, images, convolutions.
NAMES = ("qwen2", "gpt2", "bert", "dit", "vit", "convnext")


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, do: str, name: str) -> dict[str, Any]:
    """Build or serve the model *name* in a fresh process with empty caches."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / do / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / do / "triton"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/programs/zoo.py"), do, name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.split("RESULT ")[1])[name]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_other_packages_is_served_without_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In strict mode nothing misses and nothing is measured; each built problem is a hit."""
    built = run(tmp_path, monkeypatch, "build", name)
    served = run(tmp_path, monkeypatch, "serve", name)
    assert built["not_tuned"] == {}
    assert served["hits"]
    assert served["misses"] == served["benchmarks"] == {}
    assert served["clean"]
    assert served["error"] < 0.03


def test_a_model_of_the_zoo_is_raced_in_graphs_and_without(tmp_path: Path) -> None:
    """Every variant is timed both ways after one start, and the table measures nothing."""
    program, options = str(ROOT / "docs/benchmarks/zoo.py"), ("--tiny", "--models", "bert")
    done = subprocess.run(
        [sys.executable, program, "--out", str(tmp_path), *options, "--rounds", "6"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "zoo-bert.json").read_text(encoding="utf-8"))
    assert found["failure"] is None
    assert set(found["race"]["launches"]) == {"cudagraph", "eager"}
    for raced in found["race"]["launches"].values():
        (bucket,) = raced["buckets"]
        timed = {each["name"] for each in bucket["variants"] if each["agrees"]}
        assert timed >= {"eager", "default", "max-autotune", "table"}
        (table,) = [each for each in raced["variants"] if each["name"] == "table"]
        assert (table["start"]["benchmarks"], table["start"]["misses"]) == (0, 0)
