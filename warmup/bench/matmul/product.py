"""The matmul under benchmark: as a function, as a model for `warmup.build`, and as a trial."""

from __future__ import annotations

import torch
from torch import nn

from warmup.bench.matmul.shapes import Shape
from warmup.core.method import Method
from warmup.core.rows import Family, Winner
from warmup.core.trial import TensorSpec, Trial, ViewSpec

PRODUCT_TARGET = f"{__name__}:Product"  # the model argument of `warmup.build`


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return *a* times *b*."""
    return a @ b


class Product(nn.Module):
    """`product` as a model; it has no parameters."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return *a* times *b*."""
        return product(a, b)


class ProductOfWeight(nn.Module):
    """`product` with *b* as a weight: inductor's C++ template needs constant weights."""

    def __init__(self, b: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(b, requires_grad=False)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """Return *a* times the weight."""
        return product(a, self.weight)


def example_inputs(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an M x K and a K x N matrix, both row-major, of random values."""
    return torch.randn(m, k), torch.randn(k, n)


def trial_of(shape: Shape, dtype: torch.dtype, device: torch.device, method: Method) -> Trial:
    """Return a trial without candidates for the matmul of *shape*: its operands and its output."""
    name = str(dtype).removeprefix("torch.")

    def matrix(rows: int, cols: int) -> TensorSpec:
        return TensorSpec((rows, cols), (cols, 1), 0, name)

    operands = matrix(shape.m, shape.k), matrix(shape.k, shape.n)
    return Trial(
        key=str(shape),
        op="mm",
        device=str(device),
        operands=operands,
        views=tuple(ViewSpec(i, spec.sizes, spec.strides, 0) for i, spec in enumerate(operands)),
        out=matrix(shape.m, shape.n),
        candidates=(),
        library=Winner(Family.EXTERN, "aten::mm"),
        method=method,
    )
