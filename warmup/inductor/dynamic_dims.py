"""Marking a dim of an input dynamic, with its range."""

from __future__ import annotations

import torch
import torch._dynamo


def mark_range(
    tensor: torch.Tensor, dim: int, low: int, high: int | None, *, hint: int | None = None
) -> None:
    """Make the size *dim* of *tensor* dynamic from *low* to *high* in the compiles that follow.

    They choose for the size *hint*, by default that of *tensor*.
    """
    torch._dynamo.mark_dynamic(tensor, dim, hint_override=hint, min=low, max=high)
