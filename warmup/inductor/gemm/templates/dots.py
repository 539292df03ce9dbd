"""`DOTS`: the product of up to 4 rows, by sums over K without the tensor core.

A block has a few columns of B. Its threads share K, multiply in f32, and add up at the end, so that
many loads are in flight for each column. Weights are read once for all rows of A, and are loaded to
be evicted first.

Limits: A is M x K with M up to BLOCK_M, B is K x N, both of 16 or 8 bits, with sums in f32. A row
of A beyond M and a column of B beyond N are loaded as others and not stored.

Source: GEMV kernels with many threads for each column, as TileOPs has them. The tiles are those
that cover 15 tiles measured on an H100 for a row, and 12 for two and for four rows, to 0.5 %
(docs/benchmarks/few_rows.py, decode.py). With eight rows none came near `SWAPPED`: the arithmetic
in f32 takes longer than the weights.
"""

from __future__ import annotations

from typing import Final

from torch._inductor.kernel.mm_common import mm_grid
from torch._inductor.select_algorithm import TritonTemplate

# BLOCK_N, BLOCK_K, stages and warps, by BLOCK_M.
DOTS_TILES: Final = {
    1: ((2, 1024, 1, 4), (1, 2048, 2, 8), (2, 2048, 1, 8)),
    2: ((2, 1024, 3, 4), (1, 2048, 2, 8), (1, 1024, 2, 4), (4, 1024, 2, 4)),
    4: ((2, 1024, 3, 4), (2, 2048, 2, 8), (4, 1024, 2, 4)),
}
DOTS: Final = TritonTemplate(
    name="warmup_mm_dots",
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
    rn = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    in_b = tl.where(rn < N, rn, 0)
    rk = tl.arange(0, BLOCK_K)
    {% for row in range(BLOCK_M) %}
    a_{{row}} = A + tl.minimum({{row}}, M - 1) * stride_am
    sums_{{row}} = tl.zeros((BLOCK_N, BLOCK_K), dtype=ACC_TYPE)
    {% endfor %}

    for step in range(0, tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + rk
        at_b = B + (in_b[:, None] * stride_bn + k[None, :] * stride_bk)
        {% if EVEN_K %}
        b = tl.load(at_b, eviction_policy="evict_first").to(ACC_TYPE)
        {% else %}
        inside = k < K
        b = tl.load(at_b, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        b = b.to(ACC_TYPE)
        {% endif %}
        {% for row in range(BLOCK_M) %}
        {% if EVEN_K %}
        a = tl.load(a_{{row}} + k * stride_ak)
        {% else %}
        a = tl.load(a_{{row}} + k * stride_ak, mask=inside, other=0.0)
        {% endif %}
        sums_{{row}} += b * a.to(ACC_TYPE)[None, :]
        {% endfor %}

    rm = tl.arange(0, BLOCK_M)
    total = tl.sum(sums_0, 1)[None, :]
    {% for row in range(1, BLOCK_M) %}
    total = tl.where(rm[:, None] == {{row}}, tl.sum(sums_{{row}}, 1)[None, :], total)
    {% endfor %}
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)
    {{store_output(("idx_m", "idx_n"), "total", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
""",
)
