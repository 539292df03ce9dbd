"""A plain Triton matmul tuned by @triton.autotune: the baseline of a hand-written kernel.

Sizes are constants of the kernel, as they are in inductor's templates. Importing this module needs
Triton; tuning, at the first call for some sizes, needs a GPU.
"""

# Triton compiles the kernel from its source; its arguments follow Triton's customs.
# ruff: noqa: ANN001, N803

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def product_kernel(  # type: ignore[no-untyped-def]  # noqa: ANN201, PLR0917
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Write one BLOCK_M x BLOCK_N tile of the product of row-major *a* and *b* to row-major *c*."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    # Programs that run at one time work on GROUP_M rows of tiles, so that they share tiles of b.
    in_group = GROUP_M * tiles_n
    first = tl.program_id(0) // in_group * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    place = tl.program_id(0) % in_group
    rows = (first + place % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = place // height * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    # Rows and columns past the end read some others; what comes of them is not stored.
    at_a = a + (rows % M).to(tl.int64)[:, None] * K + steps[None, :]
    at_b = b + steps.to(tl.int64)[:, None] * N + (cols % N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for done in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            part_a = tl.load(at_a)
            part_b = tl.load(at_b)
        else:
            part_a = tl.load(at_a, mask=steps[None, :] < K - done, other=0.0)
            part_b = tl.load(at_b, mask=steps[:, None] < K - done, other=0.0)
        total = tl.dot(part_a, part_b, total, input_precision=PRECISION)
        at_a += BLOCK_K
        at_b += BLOCK_K * N
    at_c = c + rows.to(tl.int64)[:, None] * N + cols[None, :]
    is_inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(at_c, total.to(c.dtype.element_ty), mask=is_inside)


def _config(m: int, n: int, k: int, warps: int, stages: int) -> triton.Config:
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}
    return triton.Config(blocks, num_warps=warps, num_stages=stages)


CONFIGS = [
    _config(128, 256, 64, 8, 3),
    _config(128, 128, 64, 8, 3),
    _config(128, 128, 64, 4, 4),
    _config(128, 128, 32, 4, 4),
    _config(128, 64, 64, 4, 4),
    _config(64, 128, 64, 4, 4),
    _config(64, 64, 64, 4, 4),
    _config(64, 32, 128, 4, 4),
    _config(32, 64, 128, 4, 4),
    _config(32, 32, 128, 4, 5),
]

tuned_kernel = triton.autotune(configs=CONFIGS, key=["M", "N", "K"])(product_kernel)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return *a* times *b*, row-major matrices of one floating dtype, by the tuned kernel."""
    return _launch(tuned_kernel, a, b, {})


def multiply_with(a: torch.Tensor, b: torch.Tensor, config: Mapping[str, int]) -> torch.Tensor:
    """Return *a* times *b* by the kernel with the block sizes of *config*, nothing tuned."""
    return _launch(product_kernel, a, b, config)


def tuned_blocks() -> str:
    """Return the tile of the config that the last call of `multiply` ran with: ``128x64x64``."""
    blocks = tuned_kernel.best_config.kwargs
    return "x".join(str(blocks[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))


def _launch(
    kernel: Any, a: torch.Tensor, b: torch.Tensor, config: Mapping[str, int]
) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)

    def grid(meta: Mapping[str, int]) -> tuple[int]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"  # as torch.mm
    kernel[grid](a, b, out, m, n, k, PRECISION=precision, **config)
    return out
