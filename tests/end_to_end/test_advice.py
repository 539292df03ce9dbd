"""Each piece of advice about a setting is followed, and the miss is gone."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked
from own_processes import codes_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tests" / "programs" / "follow_advice.py")
pytestmark = pytest.mark.nightly
Built = tuple[Path, dict[str, Any]]


def test_advice_that_is_followed_ends_the_miss(
    net: Built, variables: dict[str, str], tmp_path: Path
) -> None:
    """Settings are named with both values; a build of the program ends what they cannot."""

    def run(*words: str) -> str:
        outer = {name: value for name, value in os.environ.items() if name[:7] != "WARMUP_"}
        folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "PYTHONPATH": str(ROOT)}
        done = run_forked(*words, env={**outer, **variables, **folders}, cwd=tmp_path)
        assert done.returncode in codes_of(words), done.stderr
        return str(done.stdout)

    found = json.loads(run(PROGRAM, str(net[0])))
    words = {
        "precision": "precision of float32 matmuls is bf16, the build's was ieee",
        "autocast": "computes in bf16 (autocast, or a cast) what was built in f32",
        "dynamic": "compile with dynamic=False",
        "gradients": "call the compiled function under torch.no_grad()",
        "threads": "before the install, or build with",
        "device": "build on this device",
        "runtime": "build with the versions of torch",
    }
    assert found.keys() == words.keys()
    for case, text in words.items():
        result = found[case]
        assert text in result["advised"], case
        assert "build this bucket" not in result["advised"], case
        assert (result["before"] > 0) is (case != "gradients"), case
        assert (result["after"], result["hits"][0], result["hits"][1] > 0) == (0, 0, True), case
    shutil.copy(net[0], tmp_path / "own.json")
    program = (PROGRAM, "own.json")
    build = ("-m", "warmup", "build", "--out", "own.json", "--set", "wait_for_quiet=0")
    run(*build, "--", sys.executable, *program, "fallback")
    assert json.loads(run(*program, "strict")) == {"autocast": [1], "rows": [1], "precision": [1]}
