"""A model without weights: nothing of it is frozen, so that inductor caches its graphs whole."""

import torch
from torch import nn


class Batched(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.bmm(a, b))


def example_inputs(seqlen: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, seqlen, 32), torch.randn(4, 32, 48)
