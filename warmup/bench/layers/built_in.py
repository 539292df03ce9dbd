"""`LAYERS`: the built-in layers, each a `Layer` as in a user's file.

Each function depends on its inputs alone. Norms have weights in the dtype of their input, as in a
model cast as a whole, and all norms have the same eps. FLOPs count an addition, multiplication,
division, comparison or exponential of an element as an operation each; a value per row counts
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.nn import functional

from warmup.bench.layers.layer import EPS, Layer

_SPREAD: Final = 0.1  # of weights around 1 and of biases around 0
_HIDDEN: Final = ((4096, 1024), (8192, 4096), (16384, 8192), (4096, 16384))


class RmsNorm:
    """x over the root of the mean of its squares, times a weight."""

    title, columns, shapes = "RMSNorm", "hidden size", _HIDDEN

    def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Return x, and a weight near 1."""
        return torch.randn(shape), _near(1, shape)

    def flops(self, shape: tuple[int, ...]) -> int:
        """Square and add; scale, and multiply by the weight."""
        return 4 * math.prod(shape)

    def backward_flops(self, shape: tuple[int, ...]) -> int:
        """Normalize, two products with two sums, and the three operations of the gradient of x."""
        return 9 * math.prod(shape)

    def eager(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the norm of torch."""
        return functional.rms_norm(x, weight.shape, weight, EPS)

    def triton(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return that of a Triton kernel."""
        from warmup.bench.layers import triton_kernels

        return triton_kernels.triton_rms_norm(x, weight)

    def liger(self, x: torch.Tensor, weight: torch.Tensor) -> Any:
        """Return Liger's, which keeps the gradient of its output."""
        from liger_kernel.transformers import functional as liger

        return liger.liger_rms_norm(x, weight, EPS, in_place=False)

    def quack(self, x: torch.Tensor, weight: torch.Tensor) -> Any:
        """Return Quack's."""
        import quack

        return quack.rmsnorm(x, weight, eps=EPS)

    def helion(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return that of a Helion kernel."""
        from warmup.bench.layers import helion

        return helion.rms_norm(x, weight)


class Softmax:
    """The softmax of each row."""

    title, columns, shapes = "Softmax", "columns", _HIDDEN

    def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Return x."""
        return (torch.randn(shape),)

    def flops(self, shape: tuple[int, ...]) -> int:
        """Compare, subtract, exponentiate, add and divide."""
        return 5 * math.prod(shape)

    def backward_flops(self, shape: tuple[int, ...]) -> int:
        """Multiply and add; subtract and multiply."""
        return 4 * math.prod(shape)

    def eager(self, x: torch.Tensor) -> torch.Tensor:
        """Return the softmax of torch."""
        return functional.softmax(x, dim=-1)

    def triton(self, x: torch.Tensor) -> torch.Tensor:
        """Return that of a Triton kernel."""
        from warmup.bench.layers import triton_kernels

        return triton_kernels.triton_softmax(x)

    def liger(self, x: torch.Tensor) -> Any:
        """Return Liger's."""
        from liger_kernel.transformers import functional as liger

        return liger.liger_softmax(x)

    def quack(self, x: torch.Tensor) -> Any:
        """Return Quack's."""
        import quack

        return quack.softmax(x)

    def helion(self, x: torch.Tensor) -> torch.Tensor:
        """Return that of a Helion kernel."""
        from warmup.bench.layers import helion

        return helion.softmax(x)


class CrossEntropy:
    """The mean over rows of the negative log-likelihood of targets."""

    title, columns = "Cross-entropy", "vocabulary"
    # Llama 2, GPT-2, Llama 3, Qwen 2
    shapes = ((4096, 32000), (4096, 50257), (4096, 128256), (4096, 151936))

    def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Return logits and targets."""
        return torch.randn(shape), torch.randint(shape[-1], shape[:-1])

    def flops(self, shape: tuple[int, ...]) -> int:
        """Compare, subtract, exponentiate and add."""
        return 4 * math.prod(shape)

    def backward_flops(self, shape: tuple[int, ...]) -> int:
        """Subtract, exponentiate, subtract the target's 1, and scale."""
        return 4 * math.prod(shape)

    def eager(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of torch."""
        return functional.cross_entropy(logits, targets)

    def liger(self, logits: torch.Tensor, targets: torch.Tensor) -> Any:
        """Return Liger's, which overwrites the logits with their gradients."""
        from liger_kernel.transformers import functional as liger

        return liger.liger_cross_entropy(logits, targets)

    def quack(self, logits: torch.Tensor, targets: torch.Tensor) -> Any:
        """Return Quack's."""
        import quack

        return quack.cross_entropy(logits, targets)

    def helion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return that of Helion kernels."""
        from warmup.bench.layers import helion

        return helion.cross_entropy(logits, targets)


class SwiGlu:
    """silu(gate) times up, element by element."""

    title, columns = "SwiGLU", "intermediate size"
    shapes = ((4096, 3420), (4096, 11008), (8192, 14336), (16384, 8192))

    def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Return gate and up."""
        return torch.randn(shape), torch.randn(shape)

    def flops(self, shape: tuple[int, ...]) -> int:
        """Negate, exponentiate, add, divide; multiply twice."""
        return 6 * math.prod(shape)

    def backward_flops(self, shape: tuple[int, ...]) -> int:
        """The sigmoid, its slope in four operations, and four products."""
        return 12 * math.prod(shape)

    def eager(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the product of torch."""
        return functional.silu(gate) * up

    def liger(self, gate: torch.Tensor, up: torch.Tensor) -> Any:
        """Return Liger's, which overwrites its inputs with their gradients."""
        from liger_kernel.transformers import functional as liger

        return liger.liger_swiglu(gate, up)

    def helion(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return that of a Helion kernel."""
        from warmup.bench.layers import helion

        return helion.swiglu(gate, up)


class LayerNorm:
    """x less its mean, over its standard deviation, times a weight, plus a bias."""

    title, columns, shapes = "LayerNorm", "hidden size", _HIDDEN

    def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Return x, a weight near 1, and a bias near 0."""
        return torch.randn(shape), _near(1, shape), _near(0, shape)

    def flops(self, shape: tuple[int, ...]) -> int:
        """Add; subtract, square and add; scale, times the weight, plus the bias."""
        return 7 * math.prod(shape)

    def backward_flops(self, shape: tuple[int, ...]) -> int:
        """Normalize in two, three products with four sums, four for the gradient of x."""
        return 13 * math.prod(shape)

    def eager(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the norm of torch."""
        return functional.layer_norm(x, weight.shape, weight, bias, EPS)

    def liger(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        """Return Liger's."""
        from liger_kernel.transformers import functional as liger

        return liger.liger_layer_norm(x, weight, bias, EPS)

    def quack(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        """Return Quack's."""
        from warmup.bench.layers import quack

        return quack.layer_norm(x, weight, bias)

    def helion(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return that of a Helion kernel."""
        from warmup.bench.layers import helion

        return helion.layer_norm(x, weight, bias)


def _near(centre: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a parameter of the last size of *shape*, of values near *centre*."""
    return torch.randn(shape[-1]) * _SPREAD + centre


LAYERS: Final[Mapping[str, type[Layer]]] = {
    "rmsnorm": RmsNorm,
    "softmax": Softmax,
    "cross-entropy": CrossEntropy,
    "swiglu": SwiGlu,
    "layernorm": LayerNorm,
}
