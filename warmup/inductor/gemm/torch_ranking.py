"""`torch_ranking`: the configs that torch's own ranking (AutoHeuristic) takes for an ``mm``.

It was learned on an H100. Predictions are compared with it, and it decides nothing here.
"""

from __future__ import annotations

import re
from typing import Any, Final

from torch._inductor.autoheuristic.artifacts._MMRankingH100 import MMRankingH100
from torch._inductor.autoheuristic.autoheuristic_utils import AHContext, mm_operations

_RANKED_TILE: Final = re.compile(
    r"type=triton_BLOCK-M=(\d+)_BLOCK-K=(\d+)_BLOCK-N=(\d+)_numstages=(\d+)_numwarps=(\d+)"
)


def torch_ranking(m: int, n: int, k: int, *, b_is_row: bool) -> list[tuple[int, ...]]:
    """Return blocks of m, n and k, stages and warps for 16-bit operands, most likely best first."""
    context = AHContext()
    features: dict[str, Any] = {
        "m": m,
        "k": k,
        "n": n,
        "mat1_stride_0": k,
        "mat1_stride_1": 1,
        "mat2_stride_0": n if b_is_row else 1,
        "mat2_stride_1": 1 if b_is_row else k,
    }
    for name, value in features.items():
        context.add_feature(name, value)
    context.apply_operations(mm_operations())
    tiles: list[tuple[int, ...]] = []
    for text in MMRankingH100().get_decisions_ranked(context) or ():
        if match := _RANKED_TILE.fullmatch(text):
            block_m, block_k, block_n, stages, warps = map(int, match.groups())
            tiles.append((block_m, block_n, block_k, stages, warps))
    return tiles
