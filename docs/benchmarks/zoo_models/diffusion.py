"""A diffusion transformer: the layers that turn codes to sound in Qwen2.5-Omni, of transformers.

Neither transformers nor timm has the image model that the name DiT comes from. These layers are of
its kind: LayerNorms without weights, shifted, scaled and gated by what a linear layer makes of the
time step.
"""

from __future__ import annotations

import torch
from random_weights import with_random_weights
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel


class Denoiser(nn.Module):
    """Hidden states (batch, frames, width) and the time step (batch) to what is taken off."""

    def __init__(self, config: Qwen2_5OmniDiTConfig) -> None:
        super().__init__()
        config._attn_implementation = "sdpa"
        self.model = Qwen2_5OmniToken2WavDiTModel(config)
        del self.model.text_embed, self.model.input_embed  # of sound, not of diffusion

    def forward(self, hidden_states: torch.Tensor, time_step: torch.Tensor) -> torch.Tensor:
        """Return the prediction (batch, frames, bins)."""
        model, states = self.model, hidden_states
        time = model.time_embed(time_step)
        positions = torch.arange(states.shape[1], device=states.device).expand(states.shape[:2])
        rotary, blocks = model.rotary_embed(states, positions), model._create_block_diff(states)
        for layer in model.transformer_blocks:
            states = layer(states, time, position_embeddings=rotary, block_diff=blocks)
        prediction: torch.Tensor = model.proj_out(model.norm_out(states, time))
        return prediction


def _denoiser(config: Qwen2_5OmniDiTConfig) -> nn.Module:
    return with_random_weights(lambda: Denoiser(config))


def dit() -> nn.Module:
    """Qwen2.5-Omni's widths, which are those of DiT-L: 4 of its 22 layers."""
    return _denoiser(Qwen2_5OmniDiTConfig(num_hidden_layers=4, ff_mult=4))


def tiny_dit() -> nn.Module:
    """`dit`, small enough for a test."""
    config = Qwen2_5OmniDiTConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, head_dim=16, block_size=4
    )
    return _denoiser(config)
