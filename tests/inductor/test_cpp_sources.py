"""Sources of C++ templates are written once for equal products, and the code stays the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "cpp_sources.py"
BF16 = {"layers": 8, "sizes": [16, 48], "dtype": "bfloat16"}  # products of mkldnn's patterns
F32 = {"layers": 2, "sizes": [16], "dtype": "float32", "ranged": True}  # products of MKL
MIXED = {"layers": 4, "sizes": [16], "dtype": "float32", "mixed": True}


@pytest.fixture(scope="module")
def answers(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Layers in bf16, in f32 along a range, and mixed, under a table, by warmup and by torch."""
    # By torch: with its own functions where warmup replaces them.
    found = {}
    for way in ("warmup", "torch"):
        words = (str(PROGRAM), way, json.dumps([BF16, F32, MIXED]))
        _, said = run_once(f"cpp-sources-{way}", *words, **variables)
        found[way] = json.loads(said.splitlines()[-1])
    return found


def test_the_generated_code_is_the_same(answers: dict[str, list[dict[str, Any]]]) -> None:
    """Byte by byte, but for addresses of weights; a detached table leaves torch's functions."""
    for ours, torchs in zip(answers["warmup"], answers["torch"], strict=True):
        assert ours["code"] == torchs["code"]
        assert all("_micro_gemm" in code for code in ours["code"])
        assert ours["is_restored"]
