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
        """Return products with the embedding."""
        return self.head(self.embedding(ids) * self.scale * factor)


class Casting(nn.Module):
    """Multiplies a weight by one that has its dtype in the source."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a product that bfloat16 alone can have."""
        return x @ self.weight @ torch.ones(8, 8, dtype=torch.bfloat16)


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
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        expected = copy.deepcopy(module).to(wide)(ids, factor=factor.to(wide))
        done = run(module, ids, factor=factor)
        assert done.outputs is not None, (dtype, wide)
        assert (done.outputs[0].dtype, done.name) == (wide, f"{str(wide)[6:]} eager on cpu"), (
            dtype,
            wide,
        )
        assert output_errors([expected], done.outputs)[0] < torch.finfo(wide).eps, (dtype, wide)
        after = module.state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items()), (
            dtype,
            wide,
        )
        assert {tensor.dtype for tensor in after.values()} == {dtype}, (dtype, wide)


def test_one_narrow_tensor_decides_for_float32() -> None:
    """A model of several dtypes runs in float32, in which its narrow weights are exact."""
    module = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8).bfloat16())
    module[1].register_buffer("spare", torch.rand(3))
    done = run(module, torch.rand(2, 8).bfloat16())
    assert done.outputs is not None
    assert done.outputs[0].dtype is torch.float32


def test_a_layer_in_8_bits_is_run_in_higher_precision() -> None:
    """Its products are those of what the bits stand for: only activations are rounded to 8 bits."""
    for name in ("RowWise", "TensorWise", "Int8"):
        layer = runpy.run_path(str(EXAMPLE))[name](hidden=128, heads=4, kv_heads=2, ffn=448).eval()
        x = torch.randn(24, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
        weight = layer.gate.weight.float() * layer.gate.scale.flatten()[:, None]
        done = run(layer.gate, x)
        assert done.outputs is not None, name
        assert 1e-3 < output_errors([x.float() @ weight.t()], done.outputs)[0] < 5e-2, name
        whole = run(layer, x[None])
        assert whole.outputs is not None, name
        assert whole.outputs[0].isfinite().all(), name


def test_a_model_that_knows_one_precision_says_so() -> None:
    """The reason has the device and the first line of the model's own error."""
    done = run(Casting().bfloat16(), torch.rand(2, 8).bfloat16())
    assert done.outputs is None
    assert done.name.startswith("no float32 run: on cpu: RuntimeError: expected")


def test_a_model_too_large_for_the_memory_is_not_run() -> None:
    """The bytes of the wide weights are compared with what is free, before anything is copied."""
    calls = [Inputs((torch.rand(2, 1024),), {})]
    module = nn.Linear(1024, 1024)
    done = run_wide(module, calls, CPU, available=lambda _device: 8 * 2**20)
    assert done.outputs is None
    assert done.name == "no float64 run: it needs 0.0 GiB, cpu has 0.0 GiB"
    assert run_wide(module, calls, CPU, available=lambda _device: 9 * 2**20).outputs is not None


def test_without_memory_on_the_device_the_cpu_runs() -> None:
    """The device with too little memory is left alone, and the CPU gives the outputs."""
    free = {"meta": 0, "cpu": 2**30}
    calls = [Inputs((torch.rand(2, 8),), {})]
    module = nn.Linear(8, 8)
    done = run_wide(module, calls, torch.device("meta"), available=lambda d: free[d.type])
    assert done.name == "float64 eager on cpu"


def test_an_allocation_that_fails_is_no_error_of_the_build() -> None:
    """Activations may need more than there is, which only the run shows."""

    class Hungry(nn.Linear):
        def forward(self, _input: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("out of memory")

    done = run(Hungry(8, 8), torch.rand(2, 8))
    assert (done.outputs, done.name) == (None, "no float64 run: cpu is out of memory")


def test_the_cpu_has_some_memory_and_not_everything() -> None:
    assert 2**20 < available_bytes(CPU) < 2**50


def test_every_call_has_its_outputs() -> None:
    """A range is judged at several sizes, which one set of wide weights computes."""
    module = nn.Linear(8, 3)
    calls = [Inputs((torch.rand(size, 8),), {}) for size in (2, 5)]
    with torch.no_grad():
        done = run_wide(module, calls, CPU)
        expected = [module(*call.args) for call in calls]
    assert done.outputs is not None
    assert max(output_errors(done.outputs, expected)) < 1e-6
