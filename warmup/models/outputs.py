"""`worst_error`: how far the outputs of a compiled model are from those of eager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from warmup.core.dtypes import dtype_name


def worst_error(expected: Any, actual: Any, tolerance: Mapping[str, float]) -> tuple[float, float]:
    """Return the relative L2 error of *actual* over *expected*, and its limit in *tolerance*.

    Both are nested outputs of the same structure. The pair is that of the first tensor above its
    limit, else that of the tensor closest to its limit. Limits are by dtype of *expected*; a dtype
    without one has the limit 0.
    """
    leaves = torch.utils._pytree.tree_leaves  # noqa: SLF001  torch's own tree walk has no public name
    pairs = [
        pair
        for pair in zip(leaves(expected), leaves(actual), strict=True)
        if isinstance(pair[0], torch.Tensor)
    ]
    worst = (0.0, 1.0)
    for reference, tensor in pairs:
        limit = tolerance.get(dtype_name(reference.dtype), 0.0)
        exact = reference.double()
        norm = exact.norm().item()
        distance = (tensor.double() - exact).norm().item()
        error = distance / norm if norm else distance
        if not error <= limit:
            return error, limit
        if error / (limit or 1) >= worst[0] / worst[1]:
            worst = (error, limit)
    return worst
