"""Decoders of transformers: token ids (batch, seqlen) to the logits of the last token.

The widths and the vocabulary are those of the named model, with few of its layers, which are alike.
"""

from __future__ import annotations

from typing import Any

import torch
from random_weights import with_random_weights
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
)


class LastToken(nn.Module):
    """A decoder as a server calls it for a prompt, or for one token of each request."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.decoder = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    def forward(self, ids: torch.Tensor) -> Any:
        """Return the logits of the last token (batch, vocabulary)."""
        return self.decoder(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]


def _decoder(config: PreTrainedConfig) -> nn.Module:
    return with_random_weights(lambda: LastToken(config))


def qwen2(layers: int = 4) -> nn.Module:
    """Qwen2.5-7B: grouped queries, biases before the attention."""
    config = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=layers,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
    )
    return _decoder(config)


def llama3() -> nn.Module:
    """Llama-3-8B."""
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    return _decoder(config)


def gemma() -> nn.Module:
    """Gemma-2B: heads of 256, a gated GELU, and the embedding as the head (256000 x 2048)."""
    config = GemmaConfig(
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        vocab_size=256000,
        tie_word_embeddings=True,
    )
    return _decoder(config)


def gpt2_medium() -> nn.Module:
    """GPT-2 medium: weights as (in, out), by `Conv1D`, and a head of 50257 columns."""
    return _decoder(GPT2Config(n_embd=1024, n_head=16, n_layer=4, vocab_size=50257))


def mixtral() -> nn.Module:
    """One layer of Mixtral-8x7B, whose experts run as `transformers` serves them compiled."""
    config = MixtralConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        experts_implementation="grouped_mm",
    )
    return _decoder(config)


def tiny_qwen2() -> nn.Module:
    """`qwen2`, small enough for a test."""
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
    )
    return _decoder(config)


def tiny_gemma() -> nn.Module:
    """`gemma`, small enough for a test."""
    config = GemmaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=256,
        tie_word_embeddings=True,
    )
    return _decoder(config)


def tiny_gpt2() -> nn.Module:
    """`gpt2_medium`, small enough for a test."""
    return _decoder(GPT2Config(n_embd=64, n_head=4, n_layer=1, vocab_size=257, n_positions=64))


def tiny_mixtral() -> nn.Module:
    """`mixtral`, small enough for a test."""
    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        num_local_experts=4,
        experts_implementation="grouped_mm",
    )
    return _decoder(config)
