"""Tiny models of transformers and timm, built on a GPU and served from their tables alone.

How fast they are at serving sizes, docs/benchmarks/zoo.py measures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROOT = Path(__file__).resolve().parents[2]
# Plain and tied heads, a Conv1D, LayerNorms that are shifted and scaled, images, convolutions.
NAMES = ("qwen2", "gpt2", "bert", "dit", "vit", "convnext")


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, do: str) -> dict[str, Any]:
    """Build or serve the models in a fresh process with empty caches."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / do / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / do / "triton"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/programs/zoo.py"), do, *NAMES],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.split("RESULT ")[1])
    return found


def test_models_of_other_packages_are_served_without_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In strict mode nothing misses and nothing is measured; each built problem is a hit."""
    built = run(tmp_path, monkeypatch, "build")
    served = run(tmp_path, monkeypatch, "serve")
    for name in NAMES:
        assert built[name]["not_tuned"] == {}, name
        assert served[name]["hits"], name
        assert served[name]["misses"] == served[name]["benchmarks"] == {}, name
        assert served[name]["clean"], name
        assert served[name]["error"] < 0.03, name
