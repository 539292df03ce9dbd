"""Helion kernels of the layers, forward and backward.

The kernels are not tuned: each has one config, with more warps for wider rows. With ``quick`` or
``full`` in ``HELION_AUTOTUNE_EFFORT`` Helion searches instead, for minutes per kernel and shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import helion
import helion.language as hl
import torch

from warmup.bench.layers.layer import EPS, Operator

_EFFORT: Final = os.environ.get("HELION_AUTOTUNE_EFFORT", "none")
_ROW_DIMS: Final = (1,)  # a program for each row
_ROWS: Final = (32, 1)  # a program for 32 rows, which it takes singly
_STRIP: Final = (1, 4096)  # a row in pieces
_FEWEST_WARPS, _MOST_WARPS = 4, 16
_PER_WARP: Final = 1024  # elements of a row

_kernel: Final[Callable[[Callable[..., Any]], Any]] = helion.kernel(
    static_shapes=True, autotune_effort=_EFFORT
)
_bound: dict[tuple[object, ...], Any] = {}


def _run(kernel: Any, blocks: tuple[int, ...], *args: torch.Tensor | float) -> Any:
    """Return the result of *kernel* on *args*, with block sizes *blocks* unless Helion tunes."""
    if _EFFORT != "none":
        return kernel(*args)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    key = (kernel, *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors))
    if key not in _bound:
        width = blocks[1] if blocks == _STRIP else tensors[0].shape[-1]
        warps = min(max((1 << (width - 1).bit_length()) // _PER_WARP, _FEWEST_WARPS), _MOST_WARPS)
        _bound[key] = kernel.bind(args)
        _bound[key].set_config(helion.Config(block_sizes=list(blocks), num_warps=warps))
    return _bound[key](*args)


@_kernel
def rms_norm_forward(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalized rows, and one over the root of the mean square of each row."""
    rows, _ = x.size()
    out = torch.empty_like(x)
    scales = torch.empty([rows], dtype=torch.float32, device=x.device)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(values * values, dim=-1) + eps)
        out[tile, :] = (values * scale[:, None] * weight[:].to(torch.float32)).to(x.dtype)
        scales[tile] = scale
    return out, scales


@_kernel
def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of the rows, and parts of that of the weight, one for each block."""
    rows = x.size(0)
    columns = hl.specialize(x.size(1))
    block = hl.register_block_size(rows)
    grad_x = torch.empty_like(x)
    parts = torch.empty(
        [(rows + block - 1) // block, columns], dtype=torch.float32, device=x.device
    )
    for outer in hl.tile(rows, block_size=block):
        part = hl.zeros([columns], dtype=torch.float32)
        for tile in hl.tile(outer.begin, outer.end):
            scale = scales[tile][:, None]
            normal = x[tile, :].to(torch.float32) * scale
            above = grad[tile, :].to(torch.float32)
            part = part + torch.sum(above * normal, dim=0)
            scaled = above * weight[:].to(torch.float32)
            mean = torch.mean(scaled * normal, dim=-1)[:, None]
            grad_x[tile, :] = ((scaled - normal * mean) * scale).to(x.dtype)
        parts[outer.id, :] = part
    return grad_x, parts


@_kernel
def layer_norm_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the normalized rows, their means, and one over their standard deviations."""
    rows, _ = x.size()
    out = torch.empty_like(x)
    means = torch.empty([rows], dtype=torch.float32, device=x.device)
    scales = torch.empty([rows], dtype=torch.float32, device=x.device)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        mean = torch.mean(values, dim=-1)
        apart = values - mean[:, None]
        scale = torch.rsqrt(torch.mean(apart * apart, dim=-1) + eps)
        normal = apart * scale[:, None]
        shifted = normal * weight[:].to(torch.float32) + bias[:].to(torch.float32)
        out[tile, :] = shifted.to(x.dtype)
        means[tile] = mean
        scales[tile] = scale
    return out, means, scales


@_kernel
def layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    means: torch.Tensor,
    scales: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradient of the rows, and parts of those of weight and bias for each block."""
    rows = x.size(0)
    columns = hl.specialize(x.size(1))
    block = hl.register_block_size(rows)
    grad_x = torch.empty_like(x)
    blocks = (rows + block - 1) // block
    weights = torch.empty([blocks, columns], dtype=torch.float32, device=x.device)
    biases = torch.empty([blocks, columns], dtype=torch.float32, device=x.device)
    for outer in hl.tile(rows, block_size=block):
        of_weight = hl.zeros([columns], dtype=torch.float32)
        of_bias = hl.zeros([columns], dtype=torch.float32)
        for tile in hl.tile(outer.begin, outer.end):
            scale = scales[tile][:, None]
            normal = (x[tile, :].to(torch.float32) - means[tile][:, None]) * scale
            above = grad[tile, :].to(torch.float32)
            of_weight = of_weight + torch.sum(above * normal, dim=0)
            of_bias = of_bias + torch.sum(above, dim=0)
            scaled = above * weight[:].to(torch.float32)
            along = torch.mean(scaled * normal, dim=-1)[:, None]
            mean = torch.mean(scaled, dim=-1)[:, None]
            grad_x[tile, :] = ((scaled - normal * along - mean) * scale).to(x.dtype)
        weights[outer.id, :] = of_weight
        biases[outer.id, :] = of_bias
    return grad_x, weights, biases


@_kernel
def softmax_forward(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row."""
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        values = x[tile, :].to(torch.float32)
        powers = torch.exp(values - torch.amax(values, dim=-1)[:, None])
        out[tile, :] = (powers / torch.sum(powers, dim=-1)[:, None]).to(x.dtype)
    return out


@_kernel
def softmax_backward(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input of a softmax with output *out*."""
    rows, _ = out.size()
    grad_x = torch.empty_like(out)
    for tile in hl.tile(rows):
        shares = out[tile, :].to(torch.float32)
        above = grad[tile, :].to(torch.float32)
        mean = torch.sum(shares * above, dim=-1)[:, None]
        grad_x[tile, :] = (shares * (above - mean)).to(out.dtype)
    return grad_x


@_kernel
def log_sums(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of the powers of each row, in one walk over it."""
    rows, columns = x.size()
    sums = torch.empty([rows], dtype=torch.float32, device=x.device)
    for tile in hl.tile(rows):
        most = hl.full([tile], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile], dtype=torch.float32)
        for along in hl.tile(columns):
            values = x[tile, along].to(torch.float32)
            new = torch.maximum(most, torch.amax(values, dim=-1))
            powers = torch.sum(torch.exp(values - new[:, None]), dim=-1)
            total = total * torch.exp(most - new) + powers
            most = new
        sums[tile] = most + torch.log(total)
    return sums


@_kernel
def cross_entropy_backward(
    x: torch.Tensor, targets: torch.Tensor, sums: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the logits, times the one number in *scale*."""
    rows, columns = x.size()
    grad_x = torch.empty_like(x)
    for tile, along in hl.tile([rows, columns]):
        shares = torch.exp(x[tile, along].to(torch.float32) - sums[tile][:, None])
        hit = targets[tile][:, None] == along.index[None, :]
        grad_x[tile, along] = (torch.where(hit, shares - 1.0, shares) * scale[0]).to(x.dtype)
    return grad_x


@_kernel
def swiglu_forward(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(*gate*) times *up*."""
    out = torch.empty_like(gate)
    for tile in hl.tile(gate.size()):
        values = gate[tile].to(torch.float32)
        out[tile] = (values * torch.sigmoid(values) * up[tile].to(torch.float32)).to(gate.dtype)
    return out


@_kernel
def swiglu_backward(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of *gate* and *up*."""
    grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
    for tile in hl.tile(gate.size()):
        values = gate[tile].to(torch.float32)
        above = grad[tile].to(torch.float32)
        share = torch.sigmoid(values)
        slope = share * (1.0 + values * (1.0 - share))
        grad_gate[tile] = (above * up[tile].to(torch.float32) * slope).to(gate.dtype)
        grad_up[tile] = (above * values * share).to(up.dtype)
    return grad_gate, grad_up


class _HelionRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        out, scales = _run(rms_norm_forward, _ROW_DIMS, x, weight, EPS)
        ctx.save_for_backward(x, weight, scales)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, scales = ctx.saved_tensors
        grad_x, parts = _run(rms_norm_backward, _ROWS, grads[0], x, weight, scales)
        return grad_x, parts.sum(0).to(weight.dtype)


class _HelionLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        out, means, scales = _run(layer_norm_forward, _ROW_DIMS, x, weight, bias, EPS)
        ctx.save_for_backward(x, weight, means, scales)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, means, scales = ctx.saved_tensors
        grad_x, weights, biases = _run(
            layer_norm_backward, _ROWS, grads[0], x, weight, means, scales
        )
        return grad_x, weights.sum(0).to(weight.dtype), biases.sum(0).to(weight.dtype)


class _HelionSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        out = _run(softmax_forward, _ROW_DIMS, x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _run(softmax_backward, _ROW_DIMS, grads[0], *ctx.saved_tensors)


class _HelionCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> Any:
        sums = _run(log_sums, _STRIP, logits)
        ctx.save_for_backward(logits, targets, sums)
        picked = logits.gather(1, targets[:, None])[:, 0]
        return (sums - picked).mean().to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        logits, targets, sums = ctx.saved_tensors
        scale = (grads[0].float() / len(targets)).reshape(1)
        return _run(cross_entropy_backward, _STRIP, logits, targets, sums, scale), None


class _HelionSwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> Any:
        ctx.save_for_backward(gate, up)
        return _run(swiglu_forward, _STRIP, gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _run(swiglu_backward, _STRIP, grads[0], *ctx.saved_tensors)


rms_norm: Final[Operator] = _HelionRmsNorm.apply
layer_norm: Final[Operator] = _HelionLayerNorm.apply
softmax: Final[Operator] = _HelionSoftmax.apply
cross_entropy: Final[Operator] = _HelionCrossEntropy.apply
swiglu: Final[Operator] = _HelionSwiGlu.apply
