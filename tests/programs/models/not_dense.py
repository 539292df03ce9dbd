"""A linear of a jagged tensor, whose results are jagged, sparse and quantized."""

import torch
from torch import nn


class NotDense(nn.Module):
    """Return a linear in three forms that are not dense; no size of the input is a bucket's."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        up = self.up(x)
        values = up.values()
        return up, values.to_sparse(), torch.quantize_per_tensor(values, 0.1, 0, torch.qint8)


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.nested.nested_tensor(
        [torch.randn(seqlen, 32), torch.randn(seqlen + 3, 32)], layout=torch.jagged
    )
