"""`mark_range`: marks a dim of an input as dynamic within a range."""

from __future__ import annotations

import torch
import torch._dynamo


def mark_range(
    tensor: torch.Tensor, dim: int, low: int, high: int | None, *, hint: int | None = None
) -> None:
    """Make the dim *dim* of *tensor* dynamic from *low* to *high* in later compiles.

    Later compiles take *hint* as the size hint of the dim, by default its size in *tensor*.
    """
    torch._dynamo.mark_dynamic(tensor, dim, hint_override=hint, min=low, max=high)
