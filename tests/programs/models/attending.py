"""An attention that is written out, between two linears."""

import torch
from torch import nn


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 8, -1)
        attended: torch.Tensor = self.out(torch.bmm(weights, v))
        return attended


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(2, seqlen, 64)
