"""Pads a small model, compiles it plain and frozen, and prints what came of it as JSON."""

from __future__ import annotations

import json
import re
import sys

import torch
from torch import nn
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from warmup.keys.gemm import Dim
from warmup.keys.weight import Padding, padded_sizes
from warmup.models.weight_groups import PaddedLinear, find_groups, pad


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(30, 32)
        self.gate, self.up = nn.Linear(32, 45), nn.Linear(32, 45)
        self.down = nn.Linear(45, 32)
        self.embed = nn.Embedding(101, 32)
        self.head = nn.Linear(32, 101, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.patch(torch.tanh(pixels)) + self.embed(tokens)
        return self.head(self.down(nn.functional.silu(self.gate(x)) * self.up(x)))


def main() -> None:
    torch.manual_seed(0)
    said = {}
    for name, freezing in (("plain", False), ("frozen", True), ("in part", False)):
        torch.compiler.reset()
        model = Model().eval()
        inputs = torch.randn(7, 30), torch.arange(7)
        with torch.no_grad(), config.patch(freezing=freezing):
            expected = model(*inputs)
            groups = find_groups(model).groups
            as_is = (Dim.of(7),) if name == "in part" else ()
            paddings = {
                g: Padding(
                    padded_sizes(g.structure.features, "f32")[0],
                    as_is if g.structure.differs_by_rows else (),
                )
                for g in groups
            }
            pad(model, paddings)
            compiled = torch.compile(model, fullgraph=True, dynamic=False)
            found, codes = run_and_get_code(compiled, *inputs)
            with torch.compiler.set_stance("fail_on_recompile"):
                compiled(inputs[0] + 1, inputs[1])
        matrices = re.findall(r"reinterpret_tensor\(arg\d+_1, \((\d+), (\d+)\)", codes[0])
        said[name] = {
            "padded": sum(isinstance(module, PaddedLinear) for module in model.modules()),
            "error": (found - expected).abs().max().item(),
            "graphs": len(codes),
            "kernels": sorted({*re.findall(r"cpp_fused_\w+", codes[0])}),
            "weights": [[int(n), int(k)] for k, n in matrices],
        }
    json.dump(said, sys.stdout)


main()
