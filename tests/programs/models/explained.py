"""Models that `warmup explain` is asked about: what they do depends on the number of rows."""

import torch
from torch import nn


class Doubles(nn.Module):
    """Takes another path from 101 rows on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * 2 if x.shape[0] > 100 else x)


class Breaks(Doubles):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        torch._dynamo.graph_break()
        return y * 2


class Blocks(Doubles):
    """Takes another path for multiples of 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 2 if x.shape[0] % 8 == 0 else self.linear(x)


class Fails(Doubles):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 100:
            raise ValueError("too many rows")
        return self.linear(x)


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 8)
