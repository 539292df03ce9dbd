"""Further models whose builds and starts are measured, of transformers and timm.

Texts take token ids (batch, seqlen), images pixels (batch, 3, height, width), speech a waveform
(batch, samples).
"""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
import transformers
from random_weights import with_random_weights
from torch import nn
from transformers import OPTConfig, Phi3Config, Wav2Vec2Config


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    return with_random_weights(lambda: make().to(torch.bfloat16).eval())


def opt() -> nn.Module:
    """OPT-1.3B with 6 of its 24 layers."""
    config = OPTConfig(
        hidden_size=2048,
        word_embed_proj_dim=2048,
        ffn_dim=8192,
        num_attention_heads=32,
        num_hidden_layers=6,
        use_cache=False,
    )
    return _made(lambda: transformers.OPTModel(config))


def phi3() -> nn.Module:
    """Phi-3-mini with 4 of its 32 layers."""
    config = Phi3Config(num_hidden_layers=4, use_cache=False, pad_token_id=0)
    return _made(lambda: transformers.Phi3Model(config))


def dinov2() -> nn.Module:
    """ViT-B/14 of DINOv2 at 518 pixels, whole."""
    return _made(lambda: timm.create_model("vit_base_patch14_dinov2"))


def eva02() -> nn.Module:
    """EVA-02-B/14 at 448 pixels, whole."""
    return _made(lambda: timm.create_model("eva02_base_patch14_448"))


def wav2vec2() -> nn.Module:
    """Wav2Vec2-base, whole."""
    return _made(lambda: transformers.Wav2Vec2Model(Wav2Vec2Config()))
