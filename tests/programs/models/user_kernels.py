"""A model with two kernels under ``@triton.autotune``: one in its graph, the other outside."""
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

# The first is never the fastest: a program of one warp for each 16 elements.
SHAPES = ((16, 1), (256, 2), (1024, 4), (2048, 8))
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in SHAPES]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def scale_in_graph(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * factor, mask=at < n)


@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["x_ptr"])
@triton.jit
def add_outside(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(x_ptr + at, x + 1, mask=at < n)


def grid(n: int) -> Any:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@torch.compiler.disable
def add_one_in_place(x: torch.Tensor) -> torch.Tensor:
    """Add 1 to *x* in eager mode; a tuner that did not restore *x* would add more."""
    add_outside[grid(x.numel())](x, x.numel())
    return x


class UserKernels(nn.Module):
    """``2 * relu(linear(x)) + 1``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.linear(x))
        scaled = torch.empty_like(hidden)
        count = hidden.numel()
        scale_in_graph[grid(count)](hidden, scaled, count, 2.0)
        return add_one_in_place(scaled)
