"""A denoising UNet of diffusers with the widths of SDXL: convolutions, attention across text."""

from __future__ import annotations

import torch
from diffusers import UNet2DConditionModel
from random_weights import with_random_weights
from torch import nn


class Step(nn.Module):
    """Latents (batch, 4, side, side) and text states (batch, words, 2048) to the noise in them."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = UNet2DConditionModel(
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=(320, 640, 1280),
            transformer_layers_per_block=(1, 2, 2),
            attention_head_dim=(5, 10, 20),
            cross_attention_dim=2048,
            use_linear_projection=True,
        )
        self.register_buffer("time", torch.tensor(500), persistent=False)

    def forward(self, sample: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the noise at time step 500 (batch, 4, side, side)."""
        noise: torch.Tensor = self.unet(sample, self.time, states, return_dict=False)[0]
        return noise


def unet() -> nn.Module:
    """SDXL's widths, with 1, 2 and 2 layers of attention in a block."""
    return with_random_weights(Step)
