"""Liger's operators of the layers, from its functional interface.

SwiGLU and cross-entropy overwrite their inputs with gradients. RMSNorm would overwrite the gradient
of its output, and is called with ``in_place=False``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from liger_kernel.transformers import functional as liger

from warmup.bench.layers.layers import EPS, Operator


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> Any:
    return liger.liger_rms_norm(x, weight, EPS, in_place=False)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return liger.liger_layer_norm(x, weight, bias, EPS)


OPERATORS: Final[Mapping[str, Operator]] = {
    "rmsnorm": _rms_norm,
    "softmax": liger.liger_softmax,
    "cross-entropy": liger.liger_cross_entropy,
    "swiglu": liger.liger_swiglu,
    "layernorm": _layer_norm,
}
