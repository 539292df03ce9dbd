"""`run_wide`: the same weights and inputs in higher precision, or the reason why not."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from warmup.models.loading import Inputs
from warmup.models.outputs import WideRun, available_bytes, output_errors, run_wide

CPU = torch.device("cpu")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/eight_bits.py"


class Tied(nn.Module):
    """A weight with two names, a buffer, an integer input and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(8))

    def forward(self, ids: torch.Tensor, *, factor: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids) * self.scale * factor)


def run(module: nn.Module, *args: Any, **kwargs: Any) -> WideRun:
    with torch.no_grad():
        return run_wide(module, [Inputs(args, kwargs)], CPU)


def test_the_same_model_runs_in_higher_precision() -> None:
    """The outputs are those of a copy that was cast before, and the model has its own weights."""
    for dtype, wide in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float64),
    ):
        module = Tied().to(dtype).eval()
        ids, factor = torch.arange(5), torch.rand((), dtype=dtype)
        before = copy.deepcopy(module.state_dict())
        expected = copy.deepcopy(module).to(wide)(ids, factor=factor.to(wide))
        done = run(module, ids, factor=factor)
        assert done.outputs is not None, dtype
        assert (done.outputs[0].dtype, done.name) == (wide, f"{str(wide)[6:]} eager on cpu")
        assert output_errors([expected], done.outputs)[0] < torch.finfo(wide).eps, dtype
        after = module.state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items()), dtype
        assert {tensor.dtype for tensor in after.values()} == {dtype}
    # A model of several dtypes runs in float32, in which its narrow weights are exact.
    mixed = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8).bfloat16())
    mixed.register_buffer("spare", torch.rand(3))
    outputs = run(mixed, torch.rand(2, 8).bfloat16()).outputs
    assert outputs is not None
    assert outputs[0].dtype is torch.float32


def test_a_layer_in_8_bits_is_run_in_higher_precision() -> None:
    """Its products are those of what the bits stand for: only activations are rounded to 8 bits."""
    for name in ("RowWise", "TensorWise", "Int8"):
        layer = runpy.run_path(str(EXAMPLE))[name](hidden=128, heads=4, kv_heads=2, ffn=448).eval()
        x = torch.randn(24, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
        weight = layer.gate.weight.float() * layer.gate.scale.flatten()[:, None]
        done, whole = run(layer.gate, x), run(layer, x[None])
        assert done.outputs is not None, name
        assert 1e-3 < output_errors([x.float() @ weight.t()], done.outputs)[0] < 5e-2, name
        assert whole.outputs is not None, name
        assert whole.outputs[0].isfinite().all(), name


def test_the_memory_of_a_device_decides_where_a_model_runs() -> None:
    """Before anything is copied; the CPU runs what the device has no memory for."""
    calls, module = [Inputs((torch.rand(2, 1024),), {})], nn.Linear(1024, 1024)
    done = run_wide(module, calls, CPU, available=lambda _device: 8 * 2**20)
    assert done.outputs is None
    assert done.name == "no float64 run: it needs 0.0 GiB, cpu has 0.0 GiB"
    free = {"meta": 0, "cpu": 9 * 2**20}
    done = run_wide(module, calls, torch.device("meta"), available=lambda d: free[d.type])
    assert done.name == "float64 eager on cpu"
    assert 2**20 < available_bytes(CPU) < 2**50
