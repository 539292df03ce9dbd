"""Layers of real models whose sizes are not aligned to 16 bytes, which makes kernels slow; bf16.

warmup build --model examples/unaligned.py:Gpt2Head --seqlens 16,1024 --out heads.json

The inputs are inferred: ``x=[seqlen,768]:bf16``.
"""

import torch
from torch import nn


class _Layer(nn.Module):
    def __init__(self, taken: int, made: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(taken, made, bias=bias, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Gpt2Head(_Layer):
    """768 features to 50257 tokens."""

    def __init__(self) -> None:
        super().__init__(768, 50257, bias=False)


class WhisperHead(_Layer):
    """1280 features to 51865 tokens, as in Whisper large."""

    def __init__(self) -> None:
        super().__init__(1280, 51865, bias=False)


class VitPatch(_Layer):
    """Patches of 14 x 14 pixels in three colours, 588 values, to 1024 features."""

    def __init__(self) -> None:
        super().__init__(588, 1024, bias=True)
