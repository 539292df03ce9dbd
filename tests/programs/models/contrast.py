"""Two nearly equal results, subtracted: in bfloat16 most of the output is rounding."""

import torch
from torch import nn
from torch.nn import functional


class Contrast(nn.Module):
    """What a small change of the input changes in the output of two MLP blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.ModuleList(nn.Linear(64, 128) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(128, 64) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, x + x.roll(1, -1) / 16])
        for up, down in zip(self.up, self.down, strict=True):
            both = both + down(functional.gelu(up(functional.layer_norm(both, [64]))))
        first, second = both.chunk(2)
        return second - first


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 64)
