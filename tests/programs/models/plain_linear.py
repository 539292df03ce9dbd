"""One product without bias, aligned: the smallest model that asks inductor for an ``mm``."""

import torch
from torch import nn


class PlainLinear(nn.Module):
    """Linear(4096 -> 1280, bias=False) in bf16."""

    def __init__(self, inner: int = 4096, outer: int = 1280) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer, bias=False, dtype=torch.bfloat16)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.linear(hidden_states)


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return the hidden states of one sequence."""
    return torch.randn(seqlen, 4096, dtype=torch.bfloat16)


def deep() -> nn.Module:
    """Return Linear(32768 -> 64): K is so large that inductor offers to split it."""
    return PlainLinear(32768, 64)
