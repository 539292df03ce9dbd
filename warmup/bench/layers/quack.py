"""`layer_norm`: Quack's LayerNorm, whose forward and backward are separate functions, as one.

It takes float32 parameters, which are converted in each call.
"""

from __future__ import annotations

from typing import Any

import torch
from quack.rmsnorm import layernorm_bwd, layernorm_fwd

from warmup.bench.layers.layer import EPS


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


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """Return the norm of *x*, times *weight*, plus *bias*."""
    if not torch.is_grad_enabled():
        return layernorm_fwd(x, weight.float(), bias.float(), eps=EPS)
    apply: Any = _QuackLayerNorm.apply  # untyped in torch
    return apply(x, weight, bias)
