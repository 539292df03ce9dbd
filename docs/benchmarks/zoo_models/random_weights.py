"""Models of the zoo with random weights: bf16, made on the GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def with_random_weights(make: Callable[[], nn.Module]) -> nn.Module:
    """Return what *make* makes, with weights in bf16.

    While it makes the model the GPU is the default device, where weights of several GB are random
    in a second, and bf16 is the default dtype, as where a package loads a model in bf16: what a
    model keeps in float32, such as rotary frequencies, stays so.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            return make()
    finally:
        torch.set_default_dtype(default)
