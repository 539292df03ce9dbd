"""Two equal layers with a weight and a batched product: rows of both forms on a CPU."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.activation = nn.functional.gelu
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.down(self.activation(self.up(x)))
        heads = inner.view(-1, 4, 8).transpose(0, 1)
        scores = torch.bmm(heads, heads.transpose(1, 2)).softmax(-1)
        return x + self.scale * torch.bmm(scores, heads).transpose(0, 1).reshape(x.shape)


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.register_buffer("shift", torch.ones(32))

    def forward(self, x: torch.Tensor, negative: bool = False) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return -(x + self.shift) if negative else x + self.shift


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 32)
