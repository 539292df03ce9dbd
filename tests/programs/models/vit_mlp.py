"""The MLP of a ViT, whole and in parts: what follows its products is fused into them, or not.

    warmup build --model tests/programs/models/vit_mlp.py:Gelu --seqlens 1370

The sizes are those of ViT-B/14 at 518 pixels in a batch of 8: 10960 rows, 768 and 3072 features,
bf16. VIT_WIDTH=16 in the environment has other widths, and VIT_BATCH another batch.
"""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

WIDTH: Final = int(os.environ.get("VIT_WIDTH", "768"))
BATCH: Final = int(os.environ.get("VIT_BATCH", "8"))
BF16: Final[Any] = {"dtype": torch.bfloat16}


class Gelu(nn.Module):
    """The first product and its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, **BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, seqlen, 4 x width) for (batch, seqlen, width)."""
        return functional.gelu(self.up(x))


class Relu(Gelu):
    """The first product and an activation that needs few registers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, seqlen, 4 x width) for (batch, seqlen, width)."""
        return functional.relu(self.up(x))


class Block(Gelu):
    """The residual block with LayerScale, and the norm of the next block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(WIDTH, **BF16), nn.LayerNorm(WIDTH, **BF16)
        self.down = nn.Linear(4 * WIDTH, WIDTH, **BF16)
        self.scale = nn.Parameter(torch.rand(WIDTH, **BF16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual stream behind the block, and the same normed."""
        x = x + self.scale * self.down(functional.gelu(self.up(self.norm(x))))
        return x, self.after(x)


def example_inputs(seqlen: int) -> torch.Tensor:
    """Return tokens of a whole batch."""
    return torch.randn(BATCH, seqlen, WIDTH, **BF16)
