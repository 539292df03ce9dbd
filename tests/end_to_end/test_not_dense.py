"""A model whose input and outputs are nested, sparse and quantized, in every command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("--model", str(ROOT / "tests" / "programs" / "models" / "not_dense.py"), "--device", "cpu")
SIZES = ("--seqlens", "8")
QUICK = ("--rounds", "6", "--variants", "eager,table")

pytestmark = pytest.mark.long


def test_outputs_that_are_not_dense_are_compared_by_their_dense_form(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> None:
    """`build` judges, `check --prime` and `compare` serve from the table; `explain` refuses."""
    words = ("-m", "warmup", "build", *MODEL, *SIZES, "--out", "t.json", "--json", "--quiet")
    folder, said = run_once("not-dense", *words, "--wait-for-quiet", "0", **variables)
    (bucket,) = json.loads(said)["buckets"]
    assert bucket["error"] < 1e-5

    def run(*words: str) -> Any:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        env = {**os.environ, **variables, **caches, "PYTHONPATH": str(ROOT)}
        return run_forked("-m", "warmup", *words, env=env, cwd=folder)

    primed = run("check", "t.json", "--prime", "--freezing", *MODEL, *SIZES, "--json")
    assert primed.returncode == 0, primed.stderr
    compared = run("compare", "--freezing", "--table", "t.json", *MODEL, *SIZES, *QUICK, "--json")
    assert compared.returncode == 0, compared.stderr
    explained = run("explain", *MODEL, "--seqlens", "8,16", "--no-grad")
    assert explained.returncode == 3
    assert "an input is a nested tensor" in explained.stderr
    assert "Traceback" not in explained.stderr
