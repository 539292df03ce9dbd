"""One product and what follows it, of any size: the layers of a model, epilogue by epilogue.

The sizes are dims, so that one file stands for all layers. Those of Llama-3-8B:

warmup build --model examples/products.py:SiluMul --out products.json \\
    --dims "n=6144;k=4096;m=16,256" --dims "n=4096;k=4096;m=16,256" \\
    --dims "n=14336;k=4096;m=16,256" --dims "n=4096;k=14336;m=16,256"
"""

import torch
from torch import nn
from torch.nn import functional


class Plain(nn.Module):
    """The product alone. As in `nn.Linear` the weight has a row for each output feature."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        del bias, other
        return functional.linear(x, weight)


class BiasGelu(nn.Module):
    """A bias, then GELU."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        del other
        return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


class SiluMul(nn.Module):
    """SiLU, then the product with another tensor of the same sizes."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        del bias
        return functional.silu(functional.linear(x, weight)) * other


class Residual(nn.Module):
    """The sum with another tensor of the same sizes."""

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
