"""Two equal layers behind a batched product, the only row that plain weights on a CPU ask for."""

import torch
from torch import nn


def activate(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x)


def finish(x: torch.Tensor) -> torch.Tensor:
    return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 32)
        self.activation = activate
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.up(x)) * self.scale


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.finish = finish

    def forward(self, x: torch.Tensor, y: torch.Tensor, negative: bool = False) -> torch.Tensor:
        x = torch.bmm(x, y)
        for layer in self.layers:
            x = layer(x)
        return self.finish(-x if negative else x)


def example_inputs(seqlen: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, seqlen, 32), torch.randn(4, 32, 32)


class Uneven(Layered):
    """The same, and the second layer multiplies by another number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1].scale = 0.25  # type: ignore[assignment]
