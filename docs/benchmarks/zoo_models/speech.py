"""Whisper, of transformers: its encoder, and its decoder beside what the encoder heard.

The encoder takes mel features (batch, bins, frames), the decoder token ids (batch, seqlen) and
what the encoder returned (batch, frames / 2, width).
"""

from __future__ import annotations

from typing import Any

import torch
from random_weights import with_random_weights
from torch import nn
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperDecoder, WhisperEncoder

_LARGE = WhisperConfig(  # large-v3, with 4 of its 32 layers
    d_model=1280,
    encoder_layers=4,
    encoder_attention_heads=20,
    encoder_ffn_dim=5120,
    decoder_layers=4,
    decoder_attention_heads=20,
    decoder_ffn_dim=5120,
    num_mel_bins=128,
    vocab_size=51866,
)
_TINY = WhisperConfig(
    d_model=64,
    encoder_layers=1,
    encoder_attention_heads=4,
    encoder_ffn_dim=128,
    decoder_layers=1,
    decoder_attention_heads=4,
    decoder_ffn_dim=128,
    num_mel_bins=16,
    max_source_positions=16,
    vocab_size=256,
    pad_token_id=0,
)


class Decoder(nn.Module):
    """The decoder and its head, which is its embedding, as a server calls it for a transcript."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.decoder = WhisperDecoder(config)

    def forward(self, ids: torch.Tensor, heard: torch.Tensor) -> Any:
        """Return the logits of the last token (batch, vocabulary)."""
        states = self.decoder(input_ids=ids, encoder_hidden_states=heard, use_cache=False)
        return states.last_hidden_state[:, -1] @ self.decoder.embed_tokens.weight.T


def _encoder(config: WhisperConfig) -> nn.Module:
    config._attn_implementation = "sdpa"
    return with_random_weights(lambda: WhisperEncoder(config))


def _decoder(config: WhisperConfig) -> nn.Module:
    config._attn_implementation = "sdpa"
    return with_random_weights(lambda: Decoder(config))


def whisper_encoder() -> nn.Module:
    """The encoder of Whisper large-v3: 1500 positions for 30 seconds."""
    return _encoder(_LARGE)


def whisper_decoder() -> nn.Module:
    """The decoder of Whisper large-v3, whose head has 51866 columns."""
    return _decoder(_LARGE)


def tiny_whisper_encoder() -> nn.Module:
    """`whisper_encoder`, small enough for a test."""
    return _encoder(_TINY)


def tiny_whisper_decoder() -> nn.Module:
    """`whisper_decoder`, small enough for a test."""
    return _decoder(_TINY)
