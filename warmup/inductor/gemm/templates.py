"""Templates of warmup's own for GEMMs with few rows, which are as fast as the weights are read.

Each template stands behind the tiles that are worth trying for it. Both templates are registered
with inductor when this module is imported, and no list of inductor's offers them: only a search of
warmup lists their candidates, and only a row serves them. Rows name the hash of a source, so that a
changed template makes its rows misses for that reason.
"""

from __future__ import annotations

from typing import Final

from torch._inductor.kernel.mm_common import mm_grid
from torch._inductor.select_algorithm import TritonTemplate

# `DOTS`: the product of up to 4 rows, by sums over K without the tensor core.

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


# `SWAPPED`: the product of up to 64 rows with N on the wide axis of the tensor core.

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
