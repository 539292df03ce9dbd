"""A model that writes a buffer in place, replaces another buffer, and writes its input."""

from __future__ import annotations

import torch
from torch import nn


class Written(nn.Module):
    """Each call advances a position and a scale, and halves the input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 96)
        self.register_buffer("position", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.position.add_(1)
        self.scale = self.scale * 1.5
        return self.linear(x.mul_(0.5)) * torch.cos(self.position) * self.scale, self.position


def example_inputs(seqlen: int) -> tuple[torch.Tensor]:
    return (torch.randn(seqlen, 64),)
