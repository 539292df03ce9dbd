"""Models whose inputs and outputs are nested, sparse and quantized, in every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_processes import MODELS, warmup_in

from warmup.core.errors import ModelError, NothingRecordedError
from warmup.diagnostics.explain import explain
from warmup.tuning.model import build_model
from warmup.tuning.request import BuildOptions

SIZES = ("--seqlens", "8")
QUICK = ("--rounds", "6", "--variants", "eager,table")
EXPLAINED = {  # by model: the code of `explain`, and what it says of the inputs
    "not_dense": (3, "an input is a nested tensor"),
    "not_dense_inputs": (0, "torch.compile does not support sparse Tensors"),
}
FORMS = {
    "x.to_sparse()": "torch.compile does not support sparse Tensors",
    "x.to_sparse_csr()": "torch.compile does not support sparse Tensors",
    "torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)": "quantized nyi in meta tensors",
}
WHOLE = """
import torch
from torch import nn

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 64)
    def forward(self, x):
        return self.up(x.dequantize() if x.is_quantized else x.to_dense())

def example_inputs(seqlen):
    x = torch.randn(seqlen, 32)
    return FORM
"""

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


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about its own sparse and quantized
def test_a_model_of_an_input_that_torch_does_not_compile_is_refused(tmp_path: Path) -> None:
    """In one sentence, with torch's reason, by `build` and by `explain`."""
    for number, (form, reason) in enumerate(FORMS.items()):
        path = tmp_path / f"whole_{number}.py"
        path.write_text(WHOLE.replace("FORM", form))
        options = BuildOptions(device="cpu", wait_for_quiet=0)
        with pytest.raises(NothingRecordedError, match="1 uncompiled frame: forward") as built:
            build_model(str(path), "8", tmp_path / "t.json", options=options)
        with pytest.raises(ModelError, match="1 uncompiled frame: forward") as explained:
            explain(str(path), seqlens="8,16", device="cpu", grad=False)
        for error in (built, explained):
            assert reason in str(error.value), form
