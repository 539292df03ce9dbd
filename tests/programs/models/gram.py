"""Two products of one key, each of a matrix with itself, beside a Linear and another product."""

import torch
from torch import nn


class Gram(nn.Module):
    """Inputs mixed by how alike the features of rows are, and how alike the positive ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 128)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        z = y.relu()
        return (y @ y.t()) @ x, z @ z.t()


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 64)
