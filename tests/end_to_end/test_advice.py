"""Each piece of advice about a setting is followed, and the miss is gone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long
Built = tuple[Path, dict[str, Any]]


def test_advice_that_is_followed_ends_the_miss(net: Built, tmp_path: Path) -> None:
    """Precision and autocast are named with both values; no bucket is to be built."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "PYTHONPATH": str(ROOT)}
    program = str(ROOT / "tests" / "programs" / "follow_advice.py")
    done = run_forked(program, str(net[0]), env={**outer, **folders}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    words = {
        "precision": "precision of float32 matmuls is bf16, the build's was ieee",
        "autocast": "computes in bf16 (autocast, or a cast) what was built in f32",
    }
    for case, text in words.items():
        result = found[case]
        (advised,) = result["advised"]
        assert text in advised, case
        assert "this bucket" not in advised, case
        assert result["before"] > 0, case
        assert (result["after"], result["hits"] > 0) == (0, True), case
