"""`DOTS`: the product of a single row, by sums over K without the tensor core.

A block has a few columns of B. Its threads share K, multiply in f32, and add up at the end, so that
many loads are in flight for each column. Weights are loaded to be evicted first.

Limits: A is 1 x K, B is K x N, both of 16 or 8 bits, with sums in f32. A column beyond N is loaded
as another and not stored.

Source: GEMV kernels with many threads for each column, as TileOPs has them. The tiles are those
that cover 15 tiles measured on an H100 to 0.1 % (docs/benchmarks/few_rows.py).
"""

from __future__ import annotations

from typing import Final

from torch._inductor.kernel.mm_common import mm_grid
from torch._inductor.select_algorithm import TritonTemplate

# BLOCK_N, BLOCK_K, stages, warps.
DOTS_TILES: Final = ((2, 1024, 1, 4), (1, 2048, 2, 8), (2, 2048, 1, 8))
DOTS: Final = TritonTemplate(
    name="warmup_mm_dots",
    grid=mm_grid,
    source=r"""
{{def_kernel("A", "B")}}
    N = {{size("B", 1)}}
    K = {{size("A", 1)}}
    if N == 0:
        return
    stride_ak = {{stride("A", 1)}}
    stride_bk = {{stride("B", 0)}}
    stride_bn = {{stride("B", 1)}}

    pid = tl.program_id(0).to(INDEX_DTYPE)
    rm = tl.arange(0, BLOCK_M)
    rn = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    in_b = tl.where(rn < N, rn, 0)
    rk = tl.arange(0, BLOCK_K)
    sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=ACC_TYPE)

    for step in range(0, tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + rk
        at_b = B + (in_b[:, None] * stride_bn + k[None, :] * stride_bk)
        {% if EVEN_K %}
        a = tl.load(A + k * stride_ak)
        b = tl.load(at_b, eviction_policy="evict_first")
        {% else %}
        a = tl.load(A + k * stride_ak, mask=k < K, other=0.0)
        b = tl.load(at_b, mask=k[None, :] < K, other=0.0, eviction_policy="evict_first")
        {% endif %}
        sums += b.to(ACC_TYPE) * a.to(ACC_TYPE)[None, :]

    total = tl.sum(sums, 1)[None, :]
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < 1) & (idx_n < N)
    {{store_output(("idx_m", "idx_n"), "total", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
""",
)
