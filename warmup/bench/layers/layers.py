"""`Layer`: a layer under benchmark, its eager function, default shapes and bytes moved.

Each function depends on its operands alone. Norms have weights in the dtype of their input, as in
a model cast as a whole, and all norms have the same eps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from warmup.core.errors import SettingsError

EPS: Final = 1e-6

Operator = Callable[..., torch.Tensor]

_ROWS_TEXT: Final = re.compile(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})")
_INDEX_BYTES: Final = 8


@dataclass(frozen=True, slots=True, order=True)
class Rows:
    """The shape of a layer's input, rows by columns, with the text form ``4096x1024``."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def elements(self) -> int:
        """The number of elements of the input."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer with ``matrices`` operands of its shape and ``vectors`` parameters of its width.

    ``scalar`` layers have integer targets as a last operand, and a single number as their output.
    ``columns`` names the second size of a shape, such as ``hidden size``.
    """

    name: str
    title: str
    columns: str
    function: Operator
    shapes: tuple[Rows, ...]
    matrices: int = 1
    vectors: int = 0
    scalar: bool = False

    def forward_bytes(self, shape: Rows, item: int) -> int:
        """Return the least bytes moved by forward: each operand read once, the output written."""
        return self._operand_bytes(shape, item) + self._output_bytes(shape, item)

    def backward_bytes(self, shape: Rows, item: int) -> int:
        """Return the least bytes moved by backward alone.

        Backward reads the gradient of the output and the operands, or for softmax the output
        instead, which is as large; it writes the gradients of the operands.
        """
        targets = _INDEX_BYTES * shape.rows if self.scalar else 0
        gradients = self._operand_bytes(shape, item) - targets
        return self._output_bytes(shape, item) + self._operand_bytes(shape, item) + gradients

    def _operand_bytes(self, shape: Rows, item: int) -> int:
        targets = _INDEX_BYTES * shape.rows if self.scalar else 0
        vectors = self.vectors * shape.columns
        return (self.matrices * shape.elements + vectors) * item + targets

    def _output_bytes(self, shape: Rows, item: int) -> int:
        return item if self.scalar else shape.elements * item


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return *x* over the root of the mean of its squares, times *weight*."""
    return functional.rms_norm(x, weight.shape, weight, EPS)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return *x* less its mean, over its standard deviation, times *weight*, plus *bias*."""
    return functional.layer_norm(x, weight.shape, weight, bias, EPS)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row of *x*."""
    return functional.softmax(x, dim=-1)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over rows of the negative log-likelihood of *targets*."""
    return functional.cross_entropy(logits, targets)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(*gate*) times *up*, element by element."""
    return functional.silu(gate) * up


def _shapes(*sizes: tuple[int, int]) -> tuple[Rows, ...]:
    return tuple(Rows(*size) for size in sizes)


_HIDDEN: Final = _shapes((4096, 1024), (8192, 4096), (16384, 8192), (4096, 16384))
_ALL: Final = (
    Layer(
        name="rmsnorm",
        title="RMSNorm",
        columns="hidden size",
        function=rms_norm,
        shapes=_HIDDEN,
        vectors=1,
    ),
    Layer(
        name="softmax",
        title="Softmax",
        columns="columns",
        function=softmax,
        shapes=_shapes((4096, 1024), (8192, 4096), (16384, 8192), (4096, 16384)),
    ),
    Layer(
        name="cross-entropy",
        title="Cross-entropy",
        columns="vocabulary",
        function=cross_entropy,
        # Llama 2, GPT-2, Llama 3, Qwen 2
        shapes=_shapes((4096, 32000), (4096, 50257), (4096, 128256), (4096, 151936)),
        scalar=True,
    ),
    Layer(
        name="swiglu",
        title="SwiGLU",
        columns="intermediate size",
        function=swiglu,
        shapes=_shapes((4096, 3420), (4096, 11008), (8192, 14336), (16384, 8192)),
        matrices=2,
    ),
    Layer(
        name="layernorm",
        title="LayerNorm",
        columns="hidden size",
        function=layer_norm,
        shapes=_HIDDEN,
        vectors=2,
    ),
)
LAYERS: Final[Mapping[str, Layer]] = {layer.name: layer for layer in _ALL}


def parse_rows(text: str) -> tuple[Rows, ...]:
    """Return the shapes in ``"4096x1024,8192x4096"``, in the order given.

    Raises:
        SettingsError: a shape is malformed or repeated.
    """
    shapes: list[Rows] = []
    for word in text.split(","):
        match = _ROWS_TEXT.fullmatch(word.strip())
        if match is None:
            raise SettingsError(
                f"--shapes: {word.strip()!r} is not ROWSxCOLUMNS",
                "write --shapes 4096x1024,8192x4096, each size below ten million",
            )
        shape = Rows(int(match[1]), int(match[2]))
        if shape in shapes:
            raise SettingsError(f"--shapes: {shape} is given twice", "name each shape once")
        shapes.append(shape)
    return tuple(shapes)
