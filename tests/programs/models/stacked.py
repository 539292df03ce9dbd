"""Equal layers on top of each other: two, or five."""

import torch
from torch import nn


class Stacked(nn.Module):
    """Layers of one product and one activation each."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu() + 1
        return x


def two() -> nn.Module:
    return Stacked(2)


def five() -> nn.Module:
    return Stacked(5)


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 48)
