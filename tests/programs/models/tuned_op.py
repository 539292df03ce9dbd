"""Models with an operator of their own, which torch tunes among two ways: no row kind covers it."""

from __future__ import annotations

import torch
from torch import nn
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning


def double_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 2 * (a @ b)


def mm_of_double(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (2 * a) @ b


OP = torch.library.custom_op("warmup_models::double_mm", mutates_args=())(double_mm)
OP.register_fake(double_mm)
register_custom_op_autotuning(
    OP, configs=[CustomOpConfig(way) for way in (double_mm, mm_of_double)]
)


class Alone(nn.Module):
    """The operator, and nothing else to choose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return OP(x, self.weight)
