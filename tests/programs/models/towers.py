"""Four plain products of activations, and a Linear: a CPU's build has a row for each."""

import torch
from torch import nn


class Towers(nn.Module):
    """The first product has the same sizes in every bucket; the others depend on the bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 96)
        self.register_buffer("mixing", torch.randn(48, 48) / 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        fixed = (self.mixing * x.mean().abs()) @ self.mixing
        return (y @ y.t()) @ x, fixed


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 64)
