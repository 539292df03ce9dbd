"""Image encoders of timm: pixels (batch, 3, height, width) to the features of an image."""

from __future__ import annotations

from typing import Any

import timm
from random_weights import with_random_weights
from torch import nn


def _encoder(name: str, **changes: Any) -> nn.Module:
    return with_random_weights(lambda: timm.create_model(name, num_classes=0, **changes))


def vit() -> nn.Module:
    """ViT-B/14 of DINOv2 at 518 pixels, 1370 tokens: 4 of its 12 layers."""
    return _encoder("vit_base_patch14_dinov2", depth=4)


def swinv2() -> nn.Module:
    """SwinV2-B with windows of 16 at 256 pixels, the third stage with 2 of its 18 layers."""
    return _encoder("swinv2_base_window16_256", depths=(2, 2, 2, 2))


def convnext() -> nn.Module:
    """ConvNeXt-B at 224 pixels, with 2 layers in each stage."""
    return _encoder("convnext_base", depths=(2, 2, 2, 2))


def tiny_vit() -> nn.Module:
    """`vit`, small enough for a test."""
    return _encoder(
        "vit_base_patch14_dinov2", depth=2, embed_dim=64, num_heads=4, img_size=56, patch_size=14
    )


def tiny_swinv2() -> nn.Module:
    """`swinv2`, small enough for a test."""
    return _encoder(
        "swinv2_base_window16_256",
        depths=(2,),
        embed_dim=32,
        num_heads=(2,),
        img_size=32,
        window_size=4,
    )


def tiny_convnext() -> nn.Module:
    """`convnext`, small enough for a test."""
    return _encoder("convnext_base", depths=(1, 1, 1, 1), dims=(16, 32, 64, 64))
