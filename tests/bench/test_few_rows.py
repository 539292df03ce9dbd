"""Kernels of `docs/benchmarks/few_rows.py` in Triton's interpreter; a GPU alone times them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

BENCHMARKS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PROGRAM = """
import json
import torch
from few_rows import Tile, launch

torch.manual_seed(0)
errors = {}
for rows, n, k in ((1, 33, 300), (5, 40, 256)):
    x, w = torch.randn(rows, k), torch.randn(n, k)
    expected, parts = x @ w.t(), torch.empty(8 * rows * n)
    for tile in (Tile("dots", 4, 128, 1, 1), *(Tile("swapped", 16, 64, 1, 1, s) for s in (1, 4))):
        y = torch.full((rows, n), float("nan"))
        launch(tile, x, w, y, parts)
        errors[f"{rows} {tile}"] = float((y - expected).norm() / expected.norm())
print(json.dumps(errors))
"""


def test_each_kernel_computes_the_product() -> None:
    """Sizes that no block divides, one row and several, a sum over K in one part and in four."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert len(errors) == 6
    assert max(errors.values()) < 1e-5
