"""`LayerOperands`: the operands of a layer in sets of equal values, and the float32 reference.

Some backends overwrite their operands, so the values are restored before each batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from warmup.bench.layers.layer import LayerShape, OpenLayer, Operator
from warmup.core.errors import OutputMismatchError, SettingsError
from warmup.core.method import SEED

_SETS_BYTES: Final = 256 * 2**20  # more than a last cache holds
_MAX_LAYER_SETS: Final = 16
_POISONED: Final = 4  # blocks of a size: an allocator may hold several that are free


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


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The least bytes that a pass moves, and its operations: None where the layer does not say."""

    moved: int
    flops: int | None

    def __add__(self, other: LayerWork) -> LayerWork:
        is_known = self.flops is not None and other.flops is not None
        flops = (self.flops or 0) + (other.flops or 0)
        return LayerWork(self.moved + other.moved, flops if is_known else None)


class LayerOperands:
    """Operand sets of *layer* at *shape*: a set when *warm*, else up to 16 to outgrow the L2.

    ``expected`` is the reference: output, then gradients, by eager on the same values in float32.
    Without *has_backward* it is the output alone, and eager needs no gradients. ``forward``
    and ``backward`` are the work of forward, and of backward alone.
    """

    def __init__(
        self,
        layer: OpenLayer,
        shape: LayerShape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        warm: bool,
        has_backward: bool = True,
    ) -> None:
        inputs = _inputs(layer, shape, dtype, device)
        exact = [value.float() if value.is_floating_point() else value for value in inputs]
        reference = _in_float32(layer)
        with torch.no_grad():
            size = reference(*exact).shape
        values = [*inputs, _gradient(size, dtype, device)]
        exact_set = _set_of([*exact, values[-1].float()])
        self.expected = (
            exact_set.both(reference) if has_backward else (exact_set.forward(reference),)
        )
        self._values = values
        total = sum(value.nbytes for value in values)
        count = 1 if warm else max(1, min(_MAX_LAYER_SETS, _SETS_BYTES // total))
        self.sets = tuple(_set_of([value.clone() for value in values]) for _ in range(count))
        floating = sum(value.nbytes for value in inputs if value.is_floating_point())
        weights = sum(weight.nbytes for weight in layer.weights)
        read, out = sum(value.nbytes for value in inputs) + weights, values[-1].nbytes
        sizes, item = shape.sizes, dtype.itemsize
        self.forward = LayerWork(
            moved=layer.count("bytes", sizes, item) or read + out,
            flops=layer.count("flops", sizes),
        )
        self.backward = LayerWork(
            moved=layer.count("backward_bytes", sizes, item) or out + read + floating,
            flops=layer.count("backward_flops", sizes),
        )

    def restore(self) -> None:
        """Restore the initial values of every set."""
        with torch.no_grad():
            for each in self.sets:
                for tensor, value in zip((*each.plain, each.gradient), self._values, strict=True):
                    tensor.copy_(value)

    def _poison(self, count: int) -> None:
        """Free blocks of the sizes of the first *count* results, filled with NaN.

        The allocator gives such a block to the next call: what a backend leaves unwritten is then
        wrong, and not the right result of the backend before it.
        """
        dtype = self._values[-1].dtype
        poisoned = [
            torch.full_like(each, math.nan, dtype=dtype)
            for each in self.expected[:count]
            for _ in range(_POISONED)
        ]
        del poisoned

    def check_forward(self, operator: Operator, limit: float) -> float:
        """Return the relative L2 distance of the output of *operator* from the reference.

        Raises:
            OutputMismatchError: the distance is larger than *limit*, or the sizes differ.
            Exception: whatever *operator* raises.
        """
        self._poison(1)
        self.restore()
        return _distance("output", self.sets[0].forward(operator), self.expected[0], limit)

    def check_both(self, operator: Operator, limit: float) -> float:
        """Return the largest relative L2 distance of output and gradients from the reference.

        The reference has gradients.

        Raises:
            OutputMismatchError: a distance is larger than *limit*, or sizes differ.
            Exception: whatever *operator* raises.
        """
        self._poison(len(self.expected))
        self.restore()
        results = self.sets[0].both(operator)
        names = ["output", *(f"gradient {number}" for number in range(1, len(results)))]
        return max(
            _distance(name, result, expected, limit)
            for name, result, expected in zip(names, results, self.expected, strict=True)
        )


def _inputs(
    layer: OpenLayer, shape: LayerShape, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Return the inputs of *layer* on *device*, the same at every call; floating ones in *dtype*.

    Raises:
        SettingsError: they are no tensors, or none of them is floating.
        Exception: whatever the layer raises.
    """
    with torch.random.fork_rng(), device:
        torch.manual_seed(SEED)
        given = layer.definition.inputs(shape.sizes)
    values = list(given) if isinstance(given, tuple | list) else [given]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise SettingsError(
            f"--layer: inputs of {layer.name} returned something else than tensors",
            "return a tuple of tensors",
        )
    if not any(value.is_floating_point() for value in values):
        raise SettingsError(f"--layer: {layer.name} has no floating input", "give it some")
    return [
        value.detach().to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
        for value in values
    ]


def _in_float32(layer: OpenLayer) -> Operator:
    """Return eager of *layer* in float32; of a module, that of a copy, cast with its buffers."""
    if not isinstance(layer.definition, nn.Module):
        return layer.eager
    exact: Any = copy.deepcopy(layer.definition).float()
    eager: Operator = exact.eager
    return eager


def _gradient(size: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a gradient of the output: one for a single number, else random values."""
    if not size:
        return torch.ones((), dtype=dtype, device=device)
    # Other values than those of the inputs: a norm's gradient along its own input cancels.
    source = torch.Generator(device).manual_seed(SEED + 1)
    return torch.randn(size, generator=source, device=device).to(dtype)


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
