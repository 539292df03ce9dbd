"""`Layer`: what a layer under benchmark has to define, built in or in a user's file.

`open_layer` reads the class of a file, `OpenLayer.of` any class. A backend is a method with the
arguments of ``eager``; it may import its library when it is called.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import nn

from warmup.core.errors import ModelError, SettingsError
from warmup.models.loading import parse_dtype
from warmup.models.model_file import cause_of, open_target

Operator = Callable[..., torch.Tensor]

EAGER: Final = "eager"
EPS: Final = 1e-6  # of all built-in norms
_MOST_DIMS: Final = 5
_DIM_TEXT: Final = re.compile(r"[1-9][0-9]{0,6}")
_TORCH_PACKAGE: Final = "torch."  # in which `nn.Module` and its subclasses are
# Attributes of a layer that are no backends.
_RESERVED: Final = frozenset(
    {
        *("title", "columns", "shapes", "inputs", "forward"),
        *("bytes", "backward_bytes", "flops", "backward_flops"),
    }
)


@dataclass(frozen=True, slots=True, order=True)
class LayerShape:
    """The sizes that a layer's inputs are made from, with the text form ``4096x1024``."""

    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes))

    @property
    def rows(self) -> int:
        """The product of all sizes but the last."""
        return math.prod(self.sizes[:-1])

    @property
    def columns(self) -> int:
        """The last size."""
        return self.sizes[-1]


class Layer(Protocol):
    """A layer: ``shapes`` are the default ones, each a tuple of as many sizes as a shape has.

    These are optional: ``title``, a name for charts; ``columns``, what the last size is, such as
    ``hidden size``; ``flops(shape)`` and ``bytes(shape, item)``, the operations and the least bytes
    of forward, with *item* bytes for an element; ``backward_flops(shape)`` and
    ``backward_bytes(shape, item)``, those of backward alone; and any other public method, which is
    a backend of its name, unless torch's own classes among the bases have a method of that name.

    Without ``bytes`` every input is read once and the output written once; for backward the
    gradient of the output and the inputs are read, and the gradients of floating inputs written.
    Without ``flops`` there are no FLOPs per byte.
    """

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        """The default shapes."""

    @property
    def eager(self) -> Operator:
        """The method that returns the output of the inputs alone: the reference of all backends."""

    def inputs(self, shape: tuple[int, ...]) -> Sequence[torch.Tensor]:
        """Return the inputs at *shape*, made on torch's default device.

        Floating inputs are cast to the dtype of the benchmark and get gradients.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLayer:
    """A `Layer` that was read and checked; ``backends`` are its methods by name, ``eager`` first.

    Methods that torch's own classes have too, such as ``train`` and ``half``, are no backends.
    """

    name: str
    title: str
    columns: str
    shapes: tuple[LayerShape, ...]
    definition: Any
    backends: Mapping[str, Operator]

    @classmethod
    def of(cls, definition: Any, name: str) -> OpenLayer:
        """Return the layer *definition*, an object with the attributes of `Layer`.

        Raises:
            SettingsError: an attribute is missing or has another form.
        """
        shapes = _shapes_of(definition, name)
        for method in (EAGER, "inputs"):
            if not callable(getattr(definition, method, None)):
                raise SettingsError(
                    f"--layer: {name} has no method {method!r}",
                    "define shapes, inputs(shape) and eager(*inputs), see "
                    "docs/how-to/bench-layers.md",
                )
        bases = type(definition).__mro__
        of_torch = {
            name
            for base in bases
            if base.__module__.startswith(_TORCH_PACKAGE)
            for name in vars(base)
        }
        own = [
            method
            for base in reversed(bases)
            for method, value in vars(base).items()
            if callable(value) and not method.startswith("_")
            if method not in _RESERVED | of_torch
        ]
        names = dict.fromkeys((EAGER, *own))
        return cls(
            name=name,
            title=str(getattr(definition, "title", name)),
            columns=str(getattr(definition, "columns", "last size")),
            shapes=shapes,
            definition=definition,
            backends={method: getattr(definition, method) for method in names},
        )

    @property
    def eager(self) -> Operator:
        """The reference of all backends."""
        return self.backends[EAGER]

    @property
    def weights(self) -> list[torch.Tensor]:
        """The parameters of the layer, empty where it is no `nn.Module`."""
        module = self.definition
        return list(module.parameters()) if isinstance(module, nn.Module) else []

    def move_to(self, device: torch.device, dtype: str) -> None:
        """Move the parameters to *device*, floating ones in *dtype*; they take no gradients."""
        if isinstance(self.definition, nn.Module):
            self.definition.to(device=device, dtype=parse_dtype(dtype, "--dtype"))
            self.definition.eval().requires_grad_(requires_grad=False)

    def count(self, what: str, *arguments: object) -> int | None:
        """Return the layer's own *what*, such as ``flops``, of *arguments*; None without.

        Raises:
            SettingsError: it is not a number above zero.
            Exception: whatever the layer raises.
        """
        own = getattr(self.definition, what, None)
        if own is None:
            return None
        value = own(*arguments)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SettingsError(
                f"--layer: {what} of {self.name} returned {value!r}", "return a number above 0"
            )
        return round(value)


def open_layer(target: str) -> OpenLayer:
    """Return the layer that ``FILE.py:Class`` or ``package.module:Class`` names.

    Raises:
        SettingsError: there is no such class, it cannot be made, or it is no `Layer`.
    """
    try:
        file, name = open_target(target)
        if not name:
            raise SettingsError(f"--layer {target!r} names no class", "write FILE.py:Class")
        definition = file.definition(name)
    except ModelError as error:
        text = str(error).replace("--model", "--layer").replace("no nn.Module class", "no module")
        raise SettingsError(text, "write --layer FILE.py:Class") from error
    if isinstance(definition, type):
        try:
            definition = definition()
        except Exception as error:  # the user's class may raise anything
            raise SettingsError(
                f"--layer {target}: making it failed ({cause_of(error)})",
                "let the class take no arguments",
            ) from error
    return OpenLayer.of(definition, name)


def parse_layer_shapes(text: str) -> tuple[LayerShape, ...]:
    """Return the shapes in ``"4096x1024,8192x4096"``, in the order given.

    Raises:
        SettingsError: a shape is malformed or repeated.
    """
    shapes: list[LayerShape] = []
    for word in text.split(","):
        sizes = word.strip().split("x")
        if len(sizes) > _MOST_DIMS or not all(map(_DIM_TEXT.fullmatch, sizes)):
            raise SettingsError(
                f"--shapes: {word.strip()!r} is no shape",
                "write --shapes 4096x1024,8192x4096, each size below ten million",
            )
        shape = LayerShape(tuple(map(int, sizes)))
        if shape in shapes:
            raise SettingsError(f"--shapes: {shape} is given twice", "name each shape once")
        shapes.append(shape)
    return tuple(shapes)


def _shapes_of(definition: Any, name: str) -> tuple[LayerShape, ...]:
    try:
        shapes = [tuple(shape) for shape in definition.shapes]
    except (AttributeError, TypeError) as error:
        raise SettingsError(
            f"--layer: {name} has no shapes", "define shapes = ((4096, 1024), (8192, 4096))"
        ) from error
    text = ",".join(str(LayerShape(shape)) for shape in shapes)
    lengths = {len(shape) for shape in shapes}
    if len(lengths) != 1:
        raise SettingsError(
            f"--layer: the shapes of {name} are {text or 'none'}",
            "give at least one shape, all of as many sizes",
        )
    return parse_layer_shapes(text)
