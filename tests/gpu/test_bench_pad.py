"""`warmup bench pad` on a GPU: samples of several ops, by two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_samples_are_timed_both_ways(run: Callable[..., str], tmp_path: Path) -> None:
    """The first samples of a seed have both times; a second run adds those that are missing."""
    out = tmp_path / "pad.jsonl"
    words = ("-m", "warmup", "bench", "pad", "--out", str(out), "--samples")
    assert run(tmp_path, *words, "4") == f"{out}: 4 of 4 samples\n"
    first = out.read_text(encoding="utf-8")
    assert run(tmp_path, *words, "6") == f"{out}: 6 of 6 samples\n"
    lines = out.read_text(encoding="utf-8")
    assert lines.startswith(first)
    samples = [json.loads(line) for line in lines.splitlines()]
    assert len({one["op"] for one in samples}) > 1
    for one in samples:
        assert min(one[name] for name in ("as_is_us", "padded_us")) > 0, one
