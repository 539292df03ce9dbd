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


class Indexed(Stacked):
    """The same, each layer found by its number, of which there are no fewer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(5):
            x = self.layers[number](x).relu() + 1
        return x


class Choosy(Indexed):
    """Layers that are found by their number where there are many rows, and in turn elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if len(x) > 8 else Stacked.forward(self, x)


class Deep(Stacked):
    """The same, and one product more where there are many layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return self.layers[0](x).sigmoid() if len(self.layers) > 3 else x


class Counted(Stacked):
    """The same, and one product more, followed by an activation for each layer there is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](super().forward(x))
        for _ in self.layers:
            x = x.sigmoid()
        return x


class Late(Stacked):
    """The same, but fewer layers and many rows have a product more, and fail in the second call."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if len(x) > 8 and len(self.layers) < 5:
            x = self.layers[0](x).sigmoid()
            self.count()
        return x

    @torch.compiler.disable
    def count(self) -> None:
        """Count the calls."""
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("called once too often")


def two() -> nn.Module:
    return Stacked(2)


def five() -> nn.Module:
    return Stacked(5)


def indexed() -> nn.Module:
    return Indexed(5)


def choosy() -> nn.Module:
    return Choosy(5)


def late() -> nn.Module:
    return Late(5)


def deep() -> nn.Module:
    return Deep(5)


def counted() -> nn.Module:
    return Counted(5)


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 48)
