"""Each piece of advice about a setting is followed, and the miss is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_processes import PROGRAMS, Built, answer_of, python_in

PROGRAM = str(PROGRAMS / "follow_advice.py")
pytestmark = pytest.mark.nightly


def test_advice_that_is_followed_ends_the_miss(net: Built, tmp_path: Path) -> None:
    """Settings are named with both values."""
    found = answer_of(python_in(tmp_path, PROGRAM, str(net[0])).stdout)
    words = {
        "precision": "precision of float32 matmuls is bf16, the build's was ieee",
        "autocast": "computes in bf16 (autocast, or a cast) what was built in f32",
        "dynamic": "compile with dynamic=False",
        "threads": "before the install, or build with",
    }
    assert found.keys() == words.keys()
    for case, text in words.items():
        result = found[case]
        assert text in result["advised"], case
        assert "build this bucket" not in result["advised"], case
        assert (result["before"] > 0, result["after"], result["hits"] > 0) == (True, 0, True), case
