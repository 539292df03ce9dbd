"""One matmul of any size with an epilogue: none, bias and GELU, SiLU and a factor, a residual.

The sizes are dims, so one file covers all layers of a model. For the layers of Llama-3-8B:

warmup build --model examples/products.py:SiluMul --out products.json \\
    --dims "n=6144;k=4096;m=16,256" --dims "n=4096;k=4096;m=16,256" \\
    --dims "n=14336;k=4096;m=16,256" --dims "n=4096;k=14336;m=16,256"
"""

import torch
from torch import nn
from torch.nn import functional


class Plain(nn.Module):
    """The matmul alone. As in `nn.Linear` the weight has a row for each output feature."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        del bias, other
        return functional.linear(x, weight)


class BiasGelu(nn.Module):
    """The matmul with a bias, then GELU."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        del other
        return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


class SiluMul(nn.Module):
    """The matmul, then SiLU, then times another tensor of the same sizes."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        del bias
        return functional.silu(functional.linear(x, weight)) * other


class Residual(nn.Module):
    """The matmul, plus another tensor of the same sizes."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        del bias
        return other + functional.linear(x, weight)


def example_inputs(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """Return x, weight, bias and the other operand, scaled so that outputs are of size 1."""
    x, weight = torch.randn(m, k), torch.randn(n, k) * k**-0.5
    made = (x, weight, torch.randn(n), torch.randn(m, n))
    return tuple(one.to(torch.bfloat16) for one in made)
