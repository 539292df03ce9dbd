"""Products other than plain ones, and a convolution: int8, fp8 with scales, conv2d. For a GPU."""

import torch
from torch import nn

HIDDEN = 256


class MixedOps(nn.Module):
    """Three ways to make [seqlen, 256] of [seqlen, 256], added up."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(HIDDEN, HIDDEN, generator=generator)
        self.register_buffer("int8", (weight * 16).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("fp8", weight.to(torch.float8_e4m3fn))
        self.register_buffer("one", torch.ones(()))
        self.conv = nn.Conv2d(1, 1, 3, padding=1, dtype=torch.bfloat16)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        quantized = (hidden_states * 16).round().clamp(-127, 127).to(torch.int8)
        by_int8 = torch._int_mm(quantized, self.int8).to(torch.bfloat16) / 256
        narrow = hidden_states.to(torch.float8_e4m3fn)
        by_fp8 = torch._scaled_mm(
            narrow, self.fp8.t(), self.one, self.one, out_dtype=torch.bfloat16
        )
        by_conv = self.conv(hidden_states[None, None])[0, 0]
        return nn.functional.relu(by_int8) + by_fp8 + by_conv


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, HIDDEN, dtype=torch.bfloat16)
