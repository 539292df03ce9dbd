"""The operands of a layer, in several sets of equal values, and what eager float32 makes of them.

Some backends write over their operands, so that they are put back before each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from warmup.bench.layers.layers import Layer, Operator, Rows
from warmup.core.errors import OutputMismatchError
from warmup.core.method import SEED

_SETS_BYTES: Final = 256 * 2**20  # more than a last cache holds
_MAX_LAYER_SETS: Final = 16
_SPREAD: Final = 0.1  # of weights around 1 and of biases around 0


@dataclass(frozen=True, slots=True)
class OperandSet:
    """One set: the operands with and without gradients, in one memory, and the output's gradient.

    ``leaves`` are those of ``operands`` that gradients are taken of.
    """

    operands: tuple[torch.Tensor, ...]
    plain: tuple[torch.Tensor, ...]
    leaves: tuple[torch.Tensor, ...]
    gradient: torch.Tensor

    def forward(self, operator: Operator) -> torch.Tensor:
        """Return what *operator* computes where no gradients are asked for."""
        with torch.no_grad():
            return operator(*self.plain)

    def both(self, operator: Operator) -> tuple[torch.Tensor, ...]:
        """Return the output of *operator*, and then the gradients of the leaves."""
        out = operator(*self.operands)
        return out, *torch.autograd.grad(out, self.leaves, self.gradient)


class LayerOperands:
    """Operand sets of *layer* at *shape*: one when *warm*, else enough to outgrow the last cache.

    ``expected`` is the output and then the gradients, of eager on the same values in float32.
    """

    def __init__(
        self, layer: Layer, shape: Rows, dtype: torch.dtype, device: torch.device, *, warm: bool
    ) -> None:
        values = _values(layer, shape, dtype, device)
        size = sum(value.nbytes for value in values)
        count = 1 if warm else max(1, min(_MAX_LAYER_SETS, _SETS_BYTES // size))
        self._values = values
        self.sets = tuple(_set_of([value.clone() for value in values]) for _ in range(count))
        exact = [value.float() if value.is_floating_point() else value for value in values]
        self.expected = _set_of(exact).both(layer.function)

    def restore(self) -> None:
        """Put back the values of every set."""
        with torch.no_grad():
            for one in self.sets:
                for tensor, value in zip((*one.plain, one.gradient), self._values, strict=True):
                    tensor.copy_(value)

    def check_forward(self, operator: Operator, limit: float) -> float:
        """Return the relative L2 distance of what *operator* computes from what is expected.

        Raises:
            OutputMismatchError: it is larger than *limit*, or the sizes differ.
            Exception: whatever *operator* raises.
        """
        self.restore()
        return _distance("output", self.sets[0].forward(operator), self.expected[0], limit)

    def check_both(self, operator: Operator, limit: float) -> float:
        """Return the largest such distance of the output and the gradients.

        Raises:
            OutputMismatchError: one is larger than *limit*, or sizes differ.
            Exception: whatever *operator* raises.
        """
        self.restore()
        found = self.sets[0].both(operator)
        names = ["output", *(f"gradient {number}" for number in range(1, len(found)))]
        return max(
            _distance(name, one, expected, limit)
            for name, one, expected in zip(names, found, self.expected, strict=True)
        )


def _values(
    layer: Layer, shape: Rows, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Return random operands of *layer*, and last the gradient of its output."""
    source = torch.Generator(device).manual_seed(SEED)
    sizes = (shape.rows, shape.columns)

    def random(*wanted: int) -> torch.Tensor:
        return torch.randn(wanted, generator=source, device=device).to(dtype)

    found = [random(*sizes) for _ in range(layer.matrices)]
    centres = (1, 0)[: layer.vectors]  # of a weight, and of a bias
    found += [random(shape.columns) * _SPREAD + centre for centre in centres]
    if layer.scalar:
        rows = (shape.rows,)
        found.append(
            torch.randint(shape.columns, rows, generator=source, device=device, dtype=torch.int64)
        )
        return [*found, torch.ones((), dtype=dtype, device=device)]
    return [*found, random(*sizes)]


def _set_of(values: Sequence[torch.Tensor]) -> OperandSet:
    plain = tuple(values[:-1])
    operands = tuple(
        one.detach().requires_grad_() if one.is_floating_point() else one for one in plain
    )
    leaves = tuple(one for one in operands if one.requires_grad)
    return OperandSet(operands, plain, leaves, values[-1])


def _distance(name: str, found: torch.Tensor, expected: torch.Tensor, limit: float) -> float:
    if found.shape != expected.shape:
        raise OutputMismatchError(
            f"its {name} has sizes {tuple(found.shape)}, not {tuple(expected.shape)}"
        )
    norm = torch.linalg.vector_norm
    with torch.no_grad():
        apart = norm(found.float() - expected, dtype=torch.float64)
        error = float(apart / norm(expected, dtype=torch.float64))
    if not error <= limit:
        raise OutputMismatchError(
            f"its {name} is wrong: relative L2 error {error:.1e}, allowed are {limit:.0e}"
        )
    return error
