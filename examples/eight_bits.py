"""A Llama-3-8B layer whose linears multiply in 8 bits: fp8 with two kinds of scales, and int8.

warmup build --model examples/eight_bits.py:RowWise --seqlens 16,512,2048 --out fp8-rows.json

``RowWise`` has a scale for each token and each output feature, ``TensorWise`` one for each tensor,
both in ``float8_e4m3fn`` by `torch._scaled_mm`; ``Int8`` has scales as ``RowWise`` and multiplies
by `torch._int_mm`, which takes more than 16 rows on a GPU. Weights are quantized once, activations
in the graph at every call.
"""

import torch
from torch import nn

HIDDEN = 4096
HEADS = 32
KV_HEADS = 8
FFN = 14336
FP8 = torch.float8_e4m3fn
TINY = 1e-12


class Quantized(nn.Module):
    """A linear without bias: weights of *dtype*, with a scale for each row or for the tensor."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, by_row: bool) -> None:
        super().__init__()
        self.dtype, self.by_row = dtype, by_row
        self.largest = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
        weight, scale = self.quantize(torch.randn(outputs, inputs) * inputs**-0.5)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.t().contiguous() if by_row else scale)

    def quantize(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return *values* divided by their scale, in 8 bits, and the scale in float32."""
        sizes = values.abs()
        size = sizes.amax(-1, keepdim=True) if self.by_row else sizes.amax()
        scale = (size.float() / self.largest).clamp(min=TINY)
        narrow = values.float() / scale
        narrow = narrow.round() if self.dtype is torch.int8 else narrow
        return narrow.clamp(-self.largest, self.largest).to(self.dtype), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow, scale = self.quantize(x.flatten(0, -2))
        weight = self.weight.t()
        if self.dtype is torch.int8:
            y = (torch._int_mm(narrow, weight) * scale * self.scale).to(x.dtype)  # noqa: SLF001
        else:
            y = torch._scaled_mm(  # noqa: SLF001
                narrow, weight, scale, self.scale, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        return y.unflatten(0, x.shape[:-1])


class Layer(nn.Module):
    """RMSNorm, grouped-query attention, RMSNorm, SwiGLU, with residuals; one linear for q, k, v."""

    dtype = FP8
    by_row = True

    def __init__(
        self, hidden: int = HIDDEN, heads: int = HEADS, kv_heads: int = KV_HEADS, ffn: int = FFN
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with device:
            self.before_attention = nn.RMSNorm(hidden, dtype=torch.bfloat16)
            self.qkv = self.linear(hidden, (heads + 2 * kv_heads) * self.head_dim)
            self.o = self.linear(hidden, hidden)
            self.before_ffn = nn.RMSNorm(hidden, dtype=torch.bfloat16)
            self.gate = self.linear(hidden, ffn)
            self.up = self.linear(hidden, ffn)
            self.down = self.linear(ffn, hidden)

    def linear(self, inputs: int, outputs: int) -> Quantized:
        """Return a linear of this layer's dtype and scales."""
        return Quantized(inputs, outputs, self.dtype, by_row=self.by_row)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        batch, seqlen, hidden = hidden_states.shape
        heads = self.qkv(self.before_attention(hidden_states))
        heads = heads.view(batch, seqlen, -1, self.head_dim).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        attention = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        hidden_states = hidden_states + self.o(
            attention.transpose(1, 2).reshape(batch, seqlen, hidden)
        )
        normed = self.before_ffn(hidden_states)
        gated = nn.functional.silu(self.gate(normed)) * self.up(normed)
        return hidden_states + self.down(gated)


class RowWise(Layer):
    """fp8, a scale for each row of activations and of weights."""


class TensorWise(Layer):
    """fp8, one scale for each tensor."""

    by_row = False


class Int8(Layer):
    """int8, a scale for each row of activations and of weights."""

    dtype = torch.int8


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return hidden states of one sequence."""
    return torch.randn(1, seqlen, HIDDEN, dtype=torch.bfloat16)
