"""A transformer block of a vision tower: hidden 1280, SwiGLU inner 3420, which is not aligned.

3420 is not a multiple of 8, so inductor also measures whether to pad, in every mode. `SwiGLU` is
the feed-forward part alone, with bias; `PaddedSwiGLU` computes the same from padded weights;
`VisionBlock` adds RMSNorm and attention.

    warmup build --model examples/vision_block.py:SwiGLU --seqlens 16,256,560,1024,2048
    warmup build --model examples/vision_block.py:VisionBlock --seqlens 64,560
"""

import torch
from torch import nn

HIDDEN = 1280
INNER = 3420
HEADS = 16


class SwiGLU(nn.Module):
    """Gated feed-forward with bias, bf16."""

    def __init__(self, hidden: int = HIDDEN, inner: int = INNER) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, dtype=torch.bfloat16)
        self.up = nn.Linear(hidden, inner, dtype=torch.bfloat16)
        self.down = nn.Linear(inner, hidden, dtype=torch.bfloat16)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gated = nn.functional.silu(self.gate(hidden_states)) * self.up(hidden_states)
        return self.down(gated)


class PaddedSwiGLU(SwiGLU):
    """The same feed-forward with its inner size zero-padded ahead of time, to a multiple of 32.

    Rows of gate and up, columns of down: silu(0) * 0 = 0, so the output is that of `SwiGLU`.
    """

    def __init__(self, hidden: int = HIDDEN, inner: int = INNER, multiple: int = 32) -> None:
        super().__init__(hidden, inner)
        extra = -inner % multiple
        for linear, pads in (
            (self.gate, (0, 0, 0, extra)),
            (self.up, (0, 0, 0, extra)),
            (self.down, (0, extra)),
        ):
            linear.weight = nn.Parameter(nn.functional.pad(linear.weight.detach(), pads))
        for linear in (self.gate, self.up):
            linear.bias = nn.Parameter(nn.functional.pad(linear.bias.detach(), (0, extra)))


class VisionBlock(nn.Module):
    """RMSNorm, attention, RMSNorm, SwiGLU, with residuals, bf16."""

    def __init__(self, hidden: int = HIDDEN, heads: int = HEADS, inner: int = INNER) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.RMSNorm(hidden, dtype=torch.bfloat16)
        self.qkv = nn.Linear(hidden, 3 * hidden, dtype=torch.bfloat16)
        self.o = nn.Linear(hidden, hidden, dtype=torch.bfloat16)
        self.before_mlp = nn.RMSNorm(hidden, dtype=torch.bfloat16)
        self.mlp = SwiGLU(hidden, inner)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        seqlen, hidden = hidden_states.shape
        qkv = self.qkv(self.before_attention(hidden_states))
        q, k, v = qkv.view(seqlen, 3, self.heads, hidden // self.heads).permute(1, 2, 0, 3)
        attended = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        hidden_states = hidden_states + self.o(attended.transpose(0, 1).reshape(seqlen, hidden))
        return hidden_states + self.mlp(self.before_mlp(hidden_states))


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return the hidden states of one image."""
    return torch.randn(seqlen, HIDDEN, dtype=torch.bfloat16)


def small() -> nn.Module:
    """Return the block at a tenth of the width, for a machine without a GPU."""
    return VisionBlock(hidden=128, heads=4, inner=342)
