"""Text encoders of transformers: token ids (batch, seqlen) to a vector for each token."""

from __future__ import annotations

import torch
from random_weights import with_random_weights
from torch import nn
from transformers import (
    AutoModel,
    BertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    T5Config,
    T5EncoderModel,
)


def _encoder(config: PreTrainedConfig) -> nn.Module:
    return with_random_weights(lambda: AutoModel.from_config(config, dtype=torch.bfloat16))


def _t5_encoder(config: T5Config) -> nn.Module:
    return with_random_weights(lambda: T5EncoderModel(config))


def bert_large(layers: int = 4) -> nn.Module:
    """BERT-large, with 4 of its 24 layers and without its pooler's classes."""
    config = BertConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=16,
        vocab_size=30522,
    )
    return _encoder(config)


def modernbert(layers: int = 4) -> nn.Module:
    """ModernBERT-base with 4 of its 22 layers: one of global and three of local attention."""
    config = ModernBertConfig(
        hidden_size=768,
        intermediate_size=1152,
        num_hidden_layers=layers,
        num_attention_heads=12,
        vocab_size=50368,
    )
    return _encoder(config)


def t5(layers: int = 4) -> nn.Module:
    """The encoder of T5 v1.1 large, which text-to-image models run: 4 of its 24 layers."""
    config = T5Config(
        d_model=1024,
        d_kv=64,
        d_ff=2816,
        num_layers=layers,
        num_heads=16,
        feed_forward_proj="gated-gelu",
        vocab_size=32128,
    )
    return _t5_encoder(config)


def tiny_bert() -> nn.Module:
    """`bert_large`, small enough for a test."""
    config = BertConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        vocab_size=256,
    )
    return _encoder(config)


def tiny_modernbert() -> nn.Module:
    """`modernbert`, small enough for a test."""
    config = ModernBertConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=256,
        pad_token_id=0,
        local_attention=8,
    )
    return _encoder(config)


def tiny_t5() -> nn.Module:
    """`t5`, small enough for a test."""
    config = T5Config(
        d_model=64,
        d_kv=16,
        d_ff=96,
        num_layers=1,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        vocab_size=256,
    )
    return _t5_encoder(config)
