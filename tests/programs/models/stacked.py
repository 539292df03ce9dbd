"""Equal layers on top of each other, and models that count on the number of their layers."""

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


class Choosy(Stacked):
    """Layers that are found by their number where there are many rows, and in turn elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) <= 8:
            return super().forward(x)
        for number in range(5):
            x = self.layers[number](x).relu() + 1
        return x


class Counted(Stacked):
    """The same, and one product more, followed by an activation for each layer there is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](super().forward(x))
        for _ in self.layers:
            x = x.sigmoid()
        return x


def two() -> nn.Module:
    return Stacked(2)


def five() -> nn.Module:
    return Stacked(5)


def choosy() -> nn.Module:
    return Choosy(5)


def counted() -> nn.Module:
    return Counted(5)


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 48)
