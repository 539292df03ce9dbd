"""A gated MLP whose products are in fp8 with a scale for each row, or in int8. For a GPU."""

import sys
from pathlib import Path

import torch
from torch import nn

# Dynamo imports the module of a function that it inlines, so the example is imported by its name.
sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))
from eight_bits import Quantized

HIDDEN, INNER = 256, 512


class Fp8(nn.Module):
    """[seqlen, 256] to [seqlen, 256]; what is between the products is quantized in the graph."""

    dtype = torch.float8_e4m3fn

    def __init__(self) -> None:
        super().__init__()
        self.gate = Quantized(HIDDEN, INNER, self.dtype, by_row=True)
        self.up = Quantized(HIDDEN, INNER, self.dtype, by_row=True)
        self.down = Quantized(INNER, HIDDEN, self.dtype, by_row=True)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gated = nn.functional.silu(self.gate(hidden_states)) * self.up(hidden_states)
        return hidden_states + self.down(gated)


class Int8(Fp8):
    """The same in int8, for more than 16 rows."""

    dtype = torch.int8


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, HIDDEN, dtype=torch.bfloat16)
