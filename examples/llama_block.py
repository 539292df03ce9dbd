"""Two Llama-8B-shaped layers: hidden 4096, 32 heads, 8 KV heads, FFN 14336, bf16.

warmup build --model examples/llama_block.py:LlamaBlocks \\
    --seqlens 16,256,560,1024,2048 --out tables/nvidia-h200/llama-blocks.bf16.json

The same layer in the shape of Qwen2.5-7B is ``qwen``, with ``--input
"hidden_states=[1,seqlen,3584]:bf16"``.
"""

import torch
from torch import nn

HIDDEN = 4096
HEADS = 32
KV_HEADS = 8
FFN = 14336
LAYERS = 2


class Layer(nn.Module):
    """RMSNorm, grouped-query attention, RMSNorm, SwiGLU, with residuals."""

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, ffn: int, *, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        self.before_attention = nn.RMSNorm(hidden)
        self.q = nn.Linear(hidden, hidden, bias=qkv_bias)
        self.k = nn.Linear(hidden, kv_heads * self.head_dim, bias=qkv_bias)
        self.v = nn.Linear(hidden, kv_heads * self.head_dim, bias=qkv_bias)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.before_ffn = nn.RMSNorm(hidden)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        batch, seqlen, hidden = hidden_states.shape
        normed = self.before_attention(hidden_states)
        q = self.q(normed).view(batch, seqlen, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(normed).view(batch, seqlen, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(normed).view(batch, seqlen, self.kv_heads, self.head_dim).transpose(1, 2)
        attention = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        attention = attention.transpose(1, 2).reshape(batch, seqlen, hidden)
        hidden_states = hidden_states + self.o(attention)
        normed = self.before_ffn(hidden_states)
        gated = nn.functional.silu(self.gate(normed)) * self.up(normed)
        return hidden_states + self.down(gated)


class LlamaBlocks(nn.Module):
    """Some layers in a row, two by default, created on the GPU if there is one."""

    def __init__(
        self,
        hidden: int = HIDDEN,
        heads: int = HEADS,
        kv_heads: int = KV_HEADS,
        ffn: int = FFN,
        *,
        qkv_bias: bool = False,
        layers: int = LAYERS,
    ) -> None:
        super().__init__()
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            made = [Layer(hidden, heads, kv_heads, ffn, qkv_bias=qkv_bias) for _ in range(layers)]
        self.layers = nn.ModuleList(made).to(torch.bfloat16)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return hidden states of one sequence."""
    return torch.randn(1, seqlen, HIDDEN, dtype=torch.bfloat16)


def qwen() -> nn.Module:
    """Return one layer of Qwen2.5-7B's shape: biases in q, k and v, KV heads of 128."""
    return LlamaBlocks(hidden=3584, heads=28, kv_heads=4, ffn=18944, qkv_bias=True, layers=1)


def small() -> nn.Module:
    """Return the same two layers at a 32nd of the width, for a machine without a GPU."""
    return LlamaBlocks(hidden=128, heads=4, kv_heads=2, ffn=448)
