"""A model of which torch.compile makes no graph: a break in a loop leaves its whole frame out."""

from __future__ import annotations

import torch
from torch import nn


class Skipped(nn.Module):
    """Two layers, each taken where a value in the tensor says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if x.sum().item() > -1e9:
                x = layer(x)
        return x


def example_inputs(seqlen: int) -> tuple[torch.Tensor]:
    return (torch.randn(seqlen, 64),)
