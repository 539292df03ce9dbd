"""`SWAPPED`: the product of up to 64 rows with N on the wide axis of the tensor core.

It computes ``B.T @ A.T`` block by block, and turns the block round before it is stored. The columns
of B fill the 64 rows of a warpgroup MMA, which few rows of A would leave empty, and the few rows of
A are its N, down to 16. Weights are loaded to be evicted first, since each is read once.

Limits: A is M x K, B is K x N, both of 16 or 8 bits, with sums in f32; any strides, and K without a
bound. A row of A beyond M and a column of B beyond N are loaded as others and not stored.

Source: the idea of swapping is that of TileOPs and of DeepGEMM's swapped operands. The tiles are
those that cover 101 tiles measured on an H100 to 0.1 %.
"""

from __future__ import annotations

from typing import Final

from torch._inductor.kernel.mm_common import mm_grid
from torch._inductor.select_algorithm import TritonTemplate

# BLOCK_N, BLOCK_K, stages and warps, for each BLOCK_M.
SWAPPED_TILES: Final = dict.fromkeys(
    (16, 32, 64),
    (
        *((64, 128, 5, 4), (64, 128, 6, 4), (64, 128, 8, 4), (64, 256, 4, 4), (128, 128, 4, 8)),
        *((128, 128, 6, 8), (16, 256, 6, 2)),
    ),
)
SWAPPED: Final = TritonTemplate(
    name="warmup_mm_swapped",
    grid=mm_grid,
    source=r"""
{{def_kernel("A", "B")}}
    M = {{size("A", 0)}}
    N = {{size("B", 1)}}
    K = {{size("A", 1)}}
    if M * N == 0:
        return
    stride_am = {{stride("A", 0)}}
    stride_ak = {{stride("A", 1)}}
    stride_bk = {{stride("B", 0)}}
    stride_bn = {{stride("B", 1)}}

    pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_n = (N + BLOCK_N - 1) // BLOCK_N
    rm = (pid // grid_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = (pid % grid_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_a = tl.where(rm < M, rm, 0)
    in_b = tl.where(rn < N, rn, 0)
    rk = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=ACC_TYPE)

    for step in range(0, tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + rk
        at_a = A + (in_a[None, :] * stride_am + k[:, None] * stride_ak)
        at_b = B + (in_b[:, None] * stride_bn + k[None, :] * stride_bk)
        {% if EVEN_K %}
        a = tl.load(at_a)
        b = tl.load(at_b, eviction_policy="evict_first")
        {% else %}
        a = tl.load(at_a, mask=k[:, None] < K, other=0.0)
        b = tl.load(at_b, mask=k[None, :] < K, other=0.0, eviction_policy="evict_first")
        {% endif %}
        {% if USE_FAST_ACCUM %}
        acc = tl.dot(b, a, acc, out_dtype=ACC_TYPE)
        {% else %}
        acc += tl.dot(b, a, out_dtype=ACC_TYPE)
        {% endif %}

    turned = tl.trans(acc)
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)
    {{store_output(("idx_m", "idx_n"), "turned", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
""",
)
