"""Marking a dim of an input dynamic, with its range."""

from __future__ import annotations

import torch
import torch._dynamo


def mark_range(tensor: torch.Tensor, dim: int, low: int, high: int | None) -> None:
    """Make the size *dim* of *tensor* dynamic from *low* to *high* in the compiles that follow."""
    torch._dynamo.mark_dynamic(tensor, dim, min=low, max=high)
