"""A build of a model whose calls write buffers and inputs, on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

MODEL = Path(__file__).resolve().parents[1] / "programs/models/written.py"


def test_each_run_of_a_build_begins_with_the_same_values(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> None:
    """Outputs differ from call to call, and the compiled output is eager's all the same."""
    words = ("--model", f"{MODEL}:Written", "--seqlens", "8,4", "--out", "t.json", "--json")
    _, said = run_once("written", "-m", "warmup", "build", *words, **variables)
    buckets = json.loads(said)["buckets"]
    assert len(buckets) == 2
    for bucket in buckets:
        assert bucket["error"] < 1e-5, bucket
