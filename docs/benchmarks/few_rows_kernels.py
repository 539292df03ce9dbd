"""Triton kernels of `few_rows.py`: y [M, N] = x [M, K] @ w [N, K].T for few rows M.

The operands are x, w, y and, for parts of a sum over K, memory for f32 [SPLITS, M, N]; then M, N, K
and the strides of the rows of x and w. Weights are loaded to be evicted first: each is read once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def swapped_kernel(
    x, w, y, parts, m_size, n_size, k_size, x_stride, w_stride,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Compute a block of columns for all rows: ``w @ x.T``, N on the wide axis of the dot."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    tiles = tl.cdiv(k_size, BLOCK_K)
    each = tl.cdiv(tiles, SPLITS)
    first = split * each
    rows = tl.where(n < n_size, n, 0).to(tl.int64) * w_stride
    for tile in range(first, tl.minimum(first + each, tiles)):
        at = tile * BLOCK_K + k
        if EVEN_K:
            a = tl.load(w + rows[:, None] + at[None, :], eviction_policy="evict_first")
            b = tl.load(
                x + m[None, :] * x_stride + at[:, None], mask=m[None, :] < m_size, other=0.0
            )
        else:
            inside = at < k_size
            a = tl.load(
                w + rows[:, None] + at[None, :],
                mask=inside[None, :],
                other=0.0,
                eviction_policy="evict_first",
            )
            b = tl.load(
                x + m[None, :] * x_stride + at[:, None],
                mask=(m[None, :] < m_size) & inside[:, None],
                other=0.0,
            )
        total = tl.dot(a, b, total)
    kept = (n[:, None] < n_size) & (m[None, :] < m_size)
    place = m[None, :] * n_size + n[:, None]
    if SPLITS == 1:
        tl.store(y + place, total.to(y.dtype.element_ty), mask=kept)
    else:
        tl.store(parts + split * m_size * n_size + place, total, mask=kept)


@triton.jit
def sum_kernel(parts, y, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Add the parts of `swapped_kernel`, always in the same order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * size + at, mask=at < size, other=0.0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=at < size)


@triton.jit
def dots_kernel(
    x, w, y, m_size, n_size, k_size, x_stride, w_stride,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Compute a few columns by products in f32, which are summed over K at the end."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.where(n < n_size, n, 0).to(tl.int64) * w_stride
    k = tl.arange(0, BLOCK_K)
    if ROWS == 1:
        sums = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        for start in range(0, k_size, BLOCK_K):
            at = start + k
            if EVEN_K:
                a = tl.load(w + rows[:, None] + at[None, :], eviction_policy="evict_first")
                b = tl.load(x + at)
            else:
                inside = at < k_size
                a = tl.load(
                    w + rows[:, None] + at[None, :],
                    mask=inside[None, :],
                    other=0.0,
                    eviction_policy="evict_first",
                )
                b = tl.load(x + at, mask=inside, other=0.0)
            sums += a.to(tl.float32) * b.to(tl.float32)[None, :]
        tl.store(y + n, tl.sum(sums, 1).to(y.dtype.element_ty), mask=n < n_size)
    else:
        m = tl.arange(0, ROWS)
        total = tl.zeros([ROWS, BLOCK_N], tl.float32)
        for start in range(0, k_size, BLOCK_K):
            at = start + k
            inside = at < k_size
            a = tl.load(
                w + rows[:, None] + at[None, :],
                mask=inside[None, :],
                other=0.0,
                eviction_policy="evict_first",
            ).to(tl.float32)
            b = tl.load(
                x + m[:, None] * x_stride + at[None, :],
                mask=(m[:, None] < m_size) & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            total += tl.sum(a[None, :, :] * b[:, None, :], 2)
        kept = (m[:, None] < m_size) & (n[None, :] < n_size)
        tl.store(y + m[:, None] * n_size + n[None, :], total.to(y.dtype.element_ty), mask=kept)


@triton.jit
def read_kernel(w, y, size, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Read all of w, and write one sum for each program, which reads STEPS blocks."""
    first = tl.program_id(0).to(tl.int64) * STEPS * BLOCK
    total = tl.zeros([BLOCK], tl.float32)
    for step in tl.static_range(STEPS):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(w + at, mask=at < size, other=0.0, eviction_policy="evict_first")
    tl.store(y + tl.program_id(0), tl.sum(total, 0))
