"""Two models to build tables for.

`VisionLinear` is one bf16 Linear(3420 -> 1280) without bias: unaligned, its inputs inferred.
`MLP` has two layers whose GEMMs have epilogues (GELU; a residual add), and `example_inputs`.

    warmup build --model examples/mlp.py --seqlens 560,1024,2048
    warmup build --model examples/mlp.py --seqlens 560,1024,2048 --dtype bf16
    warmup build --model examples/mlp.py:VisionLinear --seqlens 560,1024,2048
"""

import torch
from torch import nn


class VisionLinear(nn.Module):
    """Linear(3420 -> 1280, bias=False) in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(3420, 1280, bias=False, dtype=torch.bfloat16)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.down(hidden_states)


class MLP(nn.Module):
    """A two-layer MLP: 256 -> 1024 with GELU, 1024 -> 256 with a residual."""

    def __init__(self, hidden: int = 256, inner: int = 1024) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.gelu(self.up(hidden_states), approximate="tanh")
        return hidden_states + self.down(inner)


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return one input of the MLP."""
    return torch.randn(seqlen, 256)
