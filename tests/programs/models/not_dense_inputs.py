"""A linear of the sum of sparse and quantized inputs, which torch.compile leaves uncompiled."""

import torch
from torch import nn


class Part(nn.Module):
    """A linear in a frame of its own, which torch.compile does compile."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x)


class Summed(nn.Module):
    """Return the linear in three forms that are not dense."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, coo: torch.Tensor, csr: torch.Tensor, quantized: torch.Tensor) -> object:
        up = self.part(coo.to_dense() + csr.to_dense() + quantized.dequantize())
        narrow = torch.quantize_per_tensor(up, 0.1, 0, torch.quint8)
        return up.relu().to_sparse(), up.relu().to_sparse_csr(), narrow


def example_inputs(seqlen: int) -> tuple[torch.Tensor, ...]:
    """Return the same values as a COO, a CSR and a quantized tensor."""
    x = torch.randn(seqlen, 32)
    scales, zeros = torch.full((32,), 0.1), torch.zeros(32)
    narrow = torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8)
    return x.to_sparse(), x.to_sparse_csr(), narrow
