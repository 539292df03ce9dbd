"""Quack's operators of the layers, from its functional interface.

Quack has SwiGLU only as an epilogue of its GEMM, so that layer is missing here. Its LayerNorm takes
float32 parameters, which are converted in each call, and comes as separate forward and backward
functions, joined here into an autograd function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import quack
import torch
from quack.rmsnorm import layernorm_bwd, layernorm_fwd

from warmup.bench.layers.layers import EPS, Operator


class _QuackLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        out, rstd, mean = layernorm_fwd(
            x, weight.float(), bias.float(), eps=EPS, return_rstd=True, return_mean=True
        )
        ctx.save_for_backward(x, weight, rstd, mean)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, rstd, mean = ctx.saved_tensors
        grad_x, grad_weight, grad_bias = layernorm_bwd(x, weight.float(), grads[0], rstd, mean)
        return grad_x, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    if not torch.is_grad_enabled():
        return layernorm_fwd(x, weight.float(), bias.float(), eps=EPS)
    apply: Any = _QuackLayerNorm.apply  # untyped in torch
    return apply(x, weight, bias)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> Any:
    return quack.rmsnorm(x, weight, eps=EPS)


OPERATORS: Final[Mapping[str, Operator]] = {
    "rmsnorm": _rms_norm,
    "softmax": quack.softmax,
    "cross-entropy": quack.cross_entropy,
    "layernorm": _layer_norm,
}
