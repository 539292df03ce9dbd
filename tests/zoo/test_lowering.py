"""Models of the zoo at their serving sizes, lowered for a stated H100; nothing runs or is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from warmup.keys.registry import kind_of

pytestmark = pytest.mark.skipif(
    not (find_spec("triton") and find_spec("timm")), reason="Triton or the extra zoo is missing"
)

ROOT = Path(__file__).resolve().parents[2]


def test_each_product_of_a_served_model_is_asked_for(tmp_path: Path) -> None:
    """A decoder and an encoder: their products have keys, by rows, with what follows them."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/programs/cuda_zoo.py"), "llama3-8b-tokens", "t5"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    asked = json.loads(done.stdout.split("RESULT ")[1])
    assert set(asked) == {
        "llama3-8b-tokens: batch=32,seqlen=1",
        "t5: batch=1,seqlen=512",
        "t5: batch=8,seqlen=512",
    }
    gated = "mm m=4096 n=2816 k=1024 bf16 a=row b=col out=bf16 | epilogue=gelu_tanh,mul"
    assert f"{gated}(bf16[4096,2816])" in asked["t5: batch=8,seqlen=512"]
    widths = {(14336, 4096), (4096, 14336), (4096, 4096), (1024, 4096), (128256, 4096)}
    found = set()
    for key in asked["llama3-8b-tokens: batch=32,seqlen=1"]:
        problem = kind_of(key).ingredients(key)
        found.add((int(problem["n"]), int(problem["k"])))
    assert found >= widths
