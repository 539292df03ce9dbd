"""Hand-written Triton kernels of RMSNorm and softmax, forward and backward.

Each program holds whole rows, so every element is read once. A program of the weight's gradient
adds up many rows; the sums of all programs are added by torch. Importing this module needs Triton,
and launching a kernel a GPU or Triton's interpreter.
"""

# Triton compiles the kernels from their source; their arguments follow Triton's customs.
# ruff: noqa: ANN001, ANN201, N803, PLR0917

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from warmup.bench.layers.layer import EPS, Operator
from warmup.core.errors import SettingsError

_LONGEST_ROW: Final = 65536  # of a row that fits into the registers of a program
_ROW_PER_WARP: Final = 512  # elements of a row
_FEWEST_ROW_WARPS, _MOST_ROW_WARPS = 4, 16
_GRADIENT_PROGRAMS: Final = 512  # of the weight's gradient: a few for each multiprocessor


@triton.jit  # type: ignore[untyped-decorator]
def rms_norm_rows(x, weight, out, scales, columns, EPSILON: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write a normalized row of *x* times *weight* to *out*, and its scale to *scales*."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values, 0) / columns + EPSILON)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    normal = values * scale * weights
    tl.store(out + row * columns + at, normal.to(out.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


@triton.jit  # type: ignore[untyped-decorator]
def rms_norm_gradients(  # type: ignore[no-untyped-def]
    grad, x, weight, scales, grad_x, parts, rows, columns, PER: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the gradients of *PER* rows of *x*, and their part of the gradient of *weight*."""
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(PER):
        row = program * PER + step
        here = inside & (row < rows)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        normal = tl.load(x + row * columns + at, mask=here, other=0.0).to(tl.float32) * scale
        above = tl.load(grad + row * columns + at, mask=here, other=0.0).to(tl.float32)
        total += above * normal
        scaled = above * weights
        mean = tl.sum(scaled * normal, 0) / columns
        result = (scaled - normal * mean) * scale
        tl.store(grad_x + row * columns + at, result.to(grad_x.dtype.element_ty), mask=here)
    tl.store(parts + program * columns + at, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def softmax_rows(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the softmax of a row of *x* to *out*."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    shares = powers / tl.sum(powers, 0)
    tl.store(out + row * columns + at, shares.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def softmax_gradients(grad, out, grad_x, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the gradient of the input of a row whose softmax is *out* to *grad_x*."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    shares = tl.load(out + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    above = tl.load(grad + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    result = shares * (above - tl.sum(shares * above, 0))
    tl.store(grad_x + row * columns + at, result.to(grad_x.dtype.element_ty), mask=inside)


class _TritonRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        rows, columns = _sizes(x)
        out = torch.empty_like(x)
        scales = torch.empty(rows, dtype=torch.float32, device=x.device)
        rms_norm_rows[(rows,)](x, weight, out, scales, columns, EPSILON=EPS, **_blocks(columns))
        ctx.save_for_backward(x, weight, scales)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, scales = ctx.saved_tensors
        rows, columns = _sizes(x)
        per = triton.cdiv(rows, _GRADIENT_PROGRAMS)
        programs = triton.cdiv(rows, per)
        grad_x = torch.empty_like(x)
        parts = torch.empty((programs, columns), dtype=torch.float32, device=x.device)
        tensors = (grads[0].contiguous(), x, weight, scales, grad_x, parts)
        rms_norm_gradients[(programs,)](*tensors, rows, columns, PER=per, **_blocks(columns))
        return grad_x, parts.sum(0).to(weight.dtype)


class _TritonSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        rows, columns = _sizes(x)
        out = torch.empty_like(x)
        softmax_rows[(rows,)](x, out, columns, **_blocks(columns))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (out,) = ctx.saved_tensors
        rows, columns = _sizes(out)
        grad_x = torch.empty_like(out)
        softmax_gradients[(rows,)](grads[0].contiguous(), out, grad_x, columns, **_blocks(columns))
        return grad_x


def _sizes(x: torch.Tensor) -> tuple[int, int]:
    """Return the number of rows of *x*, which is contiguous, and their length.

    Raises:
        SettingsError: a row is too long for a program.
    """
    columns = x.shape[-1]
    if columns > _LONGEST_ROW:
        raise SettingsError(f"the Triton kernel takes rows of at most {_LONGEST_ROW} elements")
    return x.numel() // columns, columns


def _blocks(columns: int) -> dict[str, int]:
    block = triton.next_power_of_2(columns)
    return {
        "BLOCK": block,
        "num_warps": min(max(block // _ROW_PER_WARP, _FEWEST_ROW_WARPS), _MOST_ROW_WARPS),
    }


triton_rms_norm: Final[Operator] = _TritonRmsNorm.apply
triton_softmax: Final[Operator] = _TritonSoftmax.apply
