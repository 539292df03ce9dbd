"""Print what kernels are generated between the products of equal layers, for the stated H100.

    python cuda_layers.py 3,5,7

Layers are transformer layers without attention: a norm and a product, then a norm and a gated MLP,
each added to the residual stream. The keys of the kernels are printed as JSON by number of layers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import fake_gpu
import torch
from torch import nn

SIZE = 256


class Layer(nn.Module):
    """Adds a product, then a gated MLP, to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(SIZE), nn.RMSNorm(SIZE)
        self.o, self.gate = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4 * SIZE)
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual stream behind it."""
        x = x + self.o(self.before(x))
        normed = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


counts = [int(word) for word in sys.argv[1].split(",")]
models = {count: nn.Sequential(*(Layer() for _ in range(count))) for count in counts}
fake_gpu.pretend()

from torch._inductor.decomposition import select_decomp_table  # noqa: E402  after it is pretended
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.inductor.launch.kernels import read_kernel  # noqa: E402


def generate(model: nn.Module) -> str:
    """Return the code that inductor generates for *model* in bf16."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)

    def call(*inputs: torch.Tensor) -> Any:
        parameters = dict(zip(names, inputs, strict=False))
        return torch.func.functional_call(model, parameters, (inputs[-1],))

    with torch.no_grad(), mode:
        like = {"dtype": torch.bfloat16, "device": "cuda"}
        names = [name for name, _ in model.named_parameters()]
        inputs = [torch.empty(one.shape, **like) for one in model.parameters()]
        inputs.append(torch.empty(512, SIZE, **like))
        graph = make_fx(call, decomposition_table=select_decomp_table())(*inputs)
    with V.set_fake_mode(mode):
        post_grad_passes(graph, is_inference=True)
    return fake_gpu.generate(graph, inputs, mode, shapes)


def keys_in(code: str) -> set[str]:
    read = [read_kernel(name, source) for name, source in fake_gpu.kernels_in(code)]
    assert all(read)
    return {one[0].key for one in read if one is not None}


asked = {count: sorted(keys_in(generate(model))) for count, model in models.items()}
sys.stdout.write(json.dumps(asked) + "\n")
