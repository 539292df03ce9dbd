"""`LlamaLayers`: equal layers of a Llama's shapes, without embeddings, for layers.py and builds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Width(NamedTuple):
    """The sizes of a layer; ``size`` is that of a head."""

    features: int
    inner: int
    heads: int
    kv_heads: int
    size: int


WIDTHS = {"8b": Width(4096, 14336, 32, 8, 128), "small": Width(256, 512, 8, 4, 32)}


class LlamaLayer(nn.Module):
    """Attention and a gated MLP, each behind a norm and with a residual; x: [rows, features]."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        features, inner, heads, kv_heads, size = self.width = width
        self.norm1, self.norm2 = nn.RMSNorm(features), nn.RMSNorm(features)
        self.qkv = nn.Linear(features, (heads + 2 * kv_heads) * size, bias=False)
        self.out = nn.Linear(heads * size, features, bias=False)
        self.gate = nn.Linear(features, inner, bias=False)
        self.up = nn.Linear(features, inner, bias=False)
        self.down = nn.Linear(inner, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of *x*."""
        _, _, heads, kv_heads, size = self.width
        rows = x.shape[0]
        parts = [heads * size, kv_heads * size, kv_heads * size]
        q, k, v = (
            each.view(rows, -1, size).transpose(0, 1)[None]
            for each in self.qkv(self.norm1(x)).split(parts, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended[0].transpose(0, 1).reshape(rows, heads * size))
        h = self.norm2(x)
        result: torch.Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return result


class NestedLayer(LlamaLayer):
    """The same as a nested compile region, which `torch.compile` compiles once."""

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of *x*."""
        return super().forward(x)


class LlamaLayers(nn.Module):
    """*layers* of them one after the other; x: [rows, features of *width*]."""

    def __init__(self, layers: int = 2, width: str = "8b", *, is_nested: bool = False) -> None:
        super().__init__()
        self.features = WIDTHS[width].features
        kind = NestedLayer if is_nested else LlamaLayer
        self.layers = nn.ModuleList(kind(WIDTHS[width]) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        for layer in self.layers:
            x = layer(x)
        return x


def make_layers(
    count: int, width: str, device: str, dtype: torch.dtype, *, is_nested: bool = False
) -> LlamaLayers:
    """Return *count* layers whose weights were made on *device* in *dtype*."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):  # not for all of the process: dynamo would trace its mode
            return LlamaLayers(count, width, is_nested=is_nested).eval()
    finally:
        torch.set_default_dtype(before)


def deep() -> nn.Module:
    """Return 32 layers as wide as those of a model of 8 billion, made on the GPU, for a build."""
    return make_layers(32, "8b", "cuda", torch.bfloat16)


def deep_small() -> nn.Module:
    """Return 32 narrow layers, for a build on a CPU."""
    return make_layers(32, "small", "cpu", torch.float32)


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return the input of *seqlen* rows of layers as wide as those of a model of 8 billion."""
    return torch.randn(seqlen, WIDTHS["8b"].features, dtype=torch.bfloat16)
