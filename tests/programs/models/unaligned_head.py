"""A Linear with a size that is no multiple of 16 bytes, and what a compiler fuses into it."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 99)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x).relu()


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 64)
