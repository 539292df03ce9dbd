"""Whether compiled and eager outputs agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from warmup.core.dtypes import dtype_name


def worst_error(expected: Any, found: Any, tolerance: Mapping[str, float]) -> tuple[float, float]:
    """Return the largest relative L2 error over all output tensors, and its limit."""
    leaves = torch.utils._pytree.tree_leaves  # noqa: SLF001  torch's own tree walk has no public name
    pairs = [
        (e, f)
        for e, f in zip(leaves(expected), leaves(found), strict=True)
        if isinstance(e, torch.Tensor)
    ]
    worst = (0.0, 1.0)
    for e, f in pairs:
        limit = tolerance.get(dtype_name(e.dtype), 0.0)
        reference = e.double()
        norm = reference.norm().item()
        distance = (f.double() - reference).norm().item()
        error = distance / norm if norm else distance
        if not error <= limit:
            return error, limit
        if error / (limit or 1) >= worst[0] / worst[1]:
            worst = (error, limit)
    return worst
