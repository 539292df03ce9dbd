"""The linears of a graph that freezes no weights, as the rows of their frozen form name them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from warmup.inductor.compile_watch import _linears
from warmup.keys.kind import Linear


class Products(nn.Module):
    """Products with a parameter, a buffer and a transposed weight, and one of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 4), nn.Linear(3, 5, bias=False)
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("table", torch.randn(6, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return a sum of products."""
        z = self.last((self.first(x) @ self.weight) @ self.table)
        return torch.addmm(y, z, self.weight.t()[:5, :4]) + torch.mm(z, y[:5])


def test_each_product_with_a_weight_is_named_and_no_other() -> None:
    """Static and with a range of rows, and in the dtype of autocast."""
    found: list[list[Linear]] = []

    def note(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(_linears(graph, inputs))
        return graph.forward

    sizes = ((4, 8, True), (6, 4, False), (3, 6, False), (5, 3, False), (4, 5, True))
    for dynamic, casts in ((False, False), (False, True), (True, False)):
        torch.compiler.reset()
        x, y = torch.randn(7, 8), torch.randn(7, 4)
        if dynamic:
            for each in (x, y):
                torch._dynamo.mark_dynamic(each, 0)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=casts):
            torch.compile(Products(), backend=note, dynamic=dynamic or None)(x, y)
        m, dtype = None if dynamic else 7, "bf16" if casts else "f32"
        assert found.pop() == [Linear(m, n, k, dtype, has_bias) for n, k, has_bias in sizes]
