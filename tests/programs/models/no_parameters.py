"""A model whose weights say nothing about its input: it has none."""

import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x
