"""A block with a norm over long rows: a sum for which inductor uses the threads of a CPU."""

import torch
from torch import nn


class NormedMLP(nn.Module):
    """LayerNorm(4096), Linear(4096 -> 256), GELU, Linear(256 -> 4096), and a residual, in f32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4096)
        self.up = nn.Linear(4096, 256)
        self.down = nn.Linear(256, 4096, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.gelu(self.up(self.norm(hidden_states)), approximate="tanh")
        return hidden_states + self.down(inner)


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return rows of widely different sizes."""
    scales = torch.exp2(torch.randint(-6, 7, (seqlen, 4096)).float())
    return torch.randn(seqlen, 4096) * scales
