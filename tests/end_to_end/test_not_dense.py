"""Models whose inputs and outputs are nested, sparse and quantized, in every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_processes import MODELS, warmup_in

SIZES = ("--seqlens", "8")
QUICK = ("--rounds", "6", "--variants", "eager,table")
EXPLAINED = {  # by model: the code of `explain`, and what it says of the inputs
    "not_dense": (3, "an input is a nested tensor"),
    "not_dense_inputs": (0, "torch.compile does not support sparse Tensors"),
}
pytestmark = pytest.mark.nightly


def test_tensors_that_are_not_dense_are_compared_by_their_dense_form(tmp_path: Path) -> None:
    """`build` judges, `check --prime` and `compare` serve from the table; `explain` names them."""
    for name, (code, said_of_inputs) in EXPLAINED.items():
        model = ("--model", str(MODELS / f"{name}.py"), "--device", "cpu")
        table = f"{name}.json"
        done = warmup_in(tmp_path, "build", *model, *SIZES, "--out", table, "--json", "--quiet")
        (bucket,) = json.loads(done.stdout)["buckets"]
        assert bucket["error"] < 1e-5, name
        warmup_in(tmp_path, "check", table, "--prime", "--freezing", *model, *SIZES)
        warmup_in(tmp_path, "compare", "--freezing", "--table", table, *model, *SIZES, *QUICK)
        words = ("explain", *model, "--seqlens", "8,16", "--no-grad")
        explained = warmup_in(tmp_path, *words, code=code)
        assert said_of_inputs in " ".join((explained.stdout + explained.stderr).split()), name
        assert "Traceback" not in explained.stderr, name
