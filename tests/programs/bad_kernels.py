"""Triton kernels that misbehave on a GPU; `bad_candidates` offers them to a build."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _far_write(out) -> None:  # noqa: ANN001  Triton's own types
    tl.store(out + (1 << 40), 1.0)


@triton.jit
def _wait_for_ever(flag) -> None:  # noqa: ANN001  as above
    while tl.load(flag, volatile=True) == 0:
        pass


@triton.jit
def _large_product(a, b, out, n, k, block: tl.constexpr) -> None:  # noqa: ANN001, PLR0917
    rows = tl.arange(0, block)
    total = tl.zeros((block, block), dtype=tl.float32)
    for start in range(0, k, block):
        inner = start + tl.arange(0, block)
        left = tl.load(a + rows[:, None] * k + inner[None, :])
        right = tl.load(b + inner[:, None] * n + rows[None, :])
        total += tl.dot(left, right)
    tl.store(out + rows[:, None] * n + rows[None, :], total.to(out.dtype.element_ty))


def write_out_of_bounds(out: torch.Tensor) -> None:
    _far_write[(1,)](out)


def spin(out: torch.Tensor) -> None:
    _wait_for_ever[(1,)](torch.zeros(1, dtype=torch.int32, device=out.device))


def want_shared_memory(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Launch a product whose stages need more shared memory than a block may have."""
    n, k = b.shape[1], b.shape[0]
    _large_product[(1,)](a, b, out, n, k, block=128, num_stages=12, num_warps=8)
