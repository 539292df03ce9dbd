"""A model whose output differs at every call, so that no build can agree with eager."""

import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * torch.rand(x.shape[0], 48, device=x.device)


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 32)
