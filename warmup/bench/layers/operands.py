"""`LayerOperands`: the operands of a layer in sets of equal values, and the float32 reference.

Some backends overwrite their operands, so the values are restored before each batch.
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
    """A set of operands, and ``gradient``, the gradient of the output.

    ``operands`` require gradients where they are floating point; ``plain`` are the same memory
    without. ``leaves`` are the ``operands`` that require gradients.
    """

    operands: tuple[torch.Tensor, ...]
    plain: tuple[torch.Tensor, ...]
    leaves: tuple[torch.Tensor, ...]
    gradient: torch.Tensor

    def forward(self, operator: Operator) -> torch.Tensor:
        """Return the output of *operator*, computed without autograd."""
        with torch.no_grad():
            return operator(*self.plain)

    def both(self, operator: Operator) -> tuple[torch.Tensor, ...]:
        """Return the output of *operator*, and then the gradients of the leaves."""
        out = operator(*self.operands)
        return out, *torch.autograd.grad(out, self.leaves, self.gradient)


class LayerOperands:
    """Operand sets of *layer* at *shape*: a set when *warm*, else up to 16 to outgrow the L2.

    ``expected`` is the reference: output, then gradients, by eager on the same values in float32.
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
        """Restore the initial values of every set."""
        with torch.no_grad():
            for each in self.sets:
                for tensor, value in zip((*each.plain, each.gradient), self._values, strict=True):
                    tensor.copy_(value)

    def check_forward(self, operator: Operator, limit: float) -> float:
        """Return the relative L2 distance of the output of *operator* from the reference.

        Raises:
            OutputMismatchError: the distance is larger than *limit*, or the sizes differ.
            Exception: whatever *operator* raises.
        """
        self.restore()
        return _distance("output", self.sets[0].forward(operator), self.expected[0], limit)

    def check_both(self, operator: Operator, limit: float) -> float:
        """Return the largest relative L2 distance of output and gradients from the reference.

        Raises:
            OutputMismatchError: a distance is larger than *limit*, or sizes differ.
            Exception: whatever *operator* raises.
        """
        self.restore()
        results = self.sets[0].both(operator)
        names = ["output", *(f"gradient {number}" for number in range(1, len(results)))]
        return max(
            _distance(name, result, expected, limit)
            for name, result, expected in zip(names, results, self.expected, strict=True)
        )


def _values(
    layer: Layer, shape: Rows, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Return random operands of *layer*, and last the gradient of its output."""
    source = torch.Generator(device).manual_seed(SEED)
    sizes = (shape.rows, shape.columns)

    def random(*wanted: int) -> torch.Tensor:
        return torch.randn(wanted, generator=source, device=device).to(dtype)

    values = [random(*sizes) for _ in range(layer.matrices)]
    centres = (1, 0)[: layer.vectors]  # of a weight, and of a bias
    values += [random(shape.columns) * _SPREAD + centre for centre in centres]
    if layer.scalar:
        rows = (shape.rows,)
        values.append(
            torch.randint(shape.columns, rows, generator=source, device=device, dtype=torch.int64)
        )
        return [*values, torch.ones((), dtype=dtype, device=device)]
    return [*values, random(*sizes)]


def _set_of(values: Sequence[torch.Tensor]) -> OperandSet:
    plain = tuple(values[:-1])
    operands = tuple(
        value.detach().requires_grad_() if value.is_floating_point() else value for value in plain
    )
    leaves = tuple(operand for operand in operands if operand.requires_grad)
    return OperandSet(operands, plain, leaves, values[-1])


def _distance(name: str, result: torch.Tensor, expected: torch.Tensor, limit: float) -> float:
    if result.shape != expected.shape:
        raise OutputMismatchError(
            f"its {name} has sizes {tuple(result.shape)}, not {tuple(expected.shape)}"
        )
    norm = torch.linalg.vector_norm
    with torch.no_grad():
        apart = norm(result.float() - expected, dtype=torch.float64)
        error = float(apart / norm(expected, dtype=torch.float64))
    if not error <= limit:
        raise OutputMismatchError(
            f"its {name} is wrong: relative L2 error {error:.1e}, allowed are {limit:.0e}"
        )
    return error
