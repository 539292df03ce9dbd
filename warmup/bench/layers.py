"""Layers under benchmark: the built-in layers, plain GEMMs and those of the user's file.

`Layer` is the base class whose methods are backends; `open_layers` reads and checks layers.
"""

from __future__ import annotations

import copy
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from warmup.bench.cells import EAGER
from warmup.core.errors import ModelError, SettingsError
from warmup.core.rows import SEED
from warmup.models.loading import cause_of, open_target

Operator = Callable[..., Any]
Sizes = tuple[int, ...]

# Backend -> its distribution, and the module that has its kernels.
LIBRARIES: Final[Mapping[str, tuple[str, str]]] = {
    "liger": ("liger-kernel", "liger_kernel.transformers.functional"),
    "quack": ("quack-kernels", "quack"),
}
EPS: Final = 1e-6  # of all built-in norms
_SHAPE: Final = re.compile(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,4}")
_RESERVED: Final = frozenset({"inputs", "forward", "bytes", "flops"})  # methods, and no backends
_HIDDEN: Final = ((4096, 1024), (8192, 4096), (16384, 8192), (4096, 16384))


class Layer:
    """A layer under benchmark: every other public method is a backend of its name.

    A layer of the user's file needs ``shapes``, ``inputs`` and ``eager``, and may derive from this
    class, from `nn.Module`, or from neither. A backend has the arguments of ``eager``.

    Optional methods are ``flops(shape)``, the operations of forward, and ``bytes(shape, item)``,
    its least bytes with *item* bytes for an element: without it, each input is read and the output
    written. Backward reads the output's gradient and the inputs, and writes their gradients.
    """

    title: str = ""
    sizes: str = "shape"  # the names of the sizes of a shape, for charts
    shapes: Sequence[Sequence[int]] = ()

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        """Return the inputs at *shape* on torch's default device; floats get cast and gradients."""
        raise NotImplementedError

    def eager(self, *inputs: Any) -> Any:
        """Return the output of the inputs alone: the reference of all backends."""
        raise NotImplementedError


def library(name: str) -> Any:
    return importlib.import_module(LIBRARIES[name][1])


def _near(centre: int, shape: Sizes) -> torch.Tensor:
    return torch.randn(shape[-1]) * 0.1 + centre


def _call_of(backend: str, function: str, *last: float, **options: object) -> Operator:

    def call(_layer: Layer, *inputs: Any) -> Any:
        return getattr(library(backend), function)(*inputs, *last, **options)

    return call


class RmsNorm(Layer):
    """x over the root of the mean of its squares, times a weight in the dtype of x."""

    title, sizes, shapes = "RMSNorm", "rows x hidden size", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return torch.randn(shape), _near(1, shape)

    def eager(self, x: Any, weight: Any) -> Any:
        return functional.rms_norm(x, weight.shape, weight, EPS)

    # Not in place: it keeps the gradient of its output.
    liger = _call_of("liger", "liger_rms_norm", EPS, in_place=False)
    quack = _call_of("quack", "rmsnorm", eps=EPS)


class LayerNorm(Layer):
    """x less its mean, over its standard deviation, times a weight, plus a bias."""

    title, sizes, shapes = "LayerNorm", "rows x hidden size", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return torch.randn(shape), _near(1, shape), _near(0, shape)

    def eager(self, x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, weight.shape, weight, bias, EPS)

    liger = _call_of("liger", "liger_layer_norm", EPS)


class Softmax(Layer):
    """The softmax of each row."""

    title, sizes, shapes = "Softmax", "rows x columns", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return (torch.randn(shape),)

    def eager(self, x: Any) -> Any:
        return functional.softmax(x, dim=-1)

    liger = _call_of("liger", "liger_softmax")
    quack = _call_of("quack", "softmax")


class SwiGlu(Layer):
    """silu(gate) times up, element by element."""

    title, sizes = "SwiGLU", "rows x intermediate size"
    shapes = ((4096, 3420), (4096, 11008), (8192, 14336), (16384, 8192))

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return torch.randn(shape), torch.randn(shape)

    def eager(self, gate: Any, up: Any) -> Any:
        return functional.silu(gate) * up

    liger = _call_of("liger", "liger_swiglu")  # writes gradients over its inputs


class CrossEntropy(Layer):
    """The mean over rows of the negative log-likelihood of targets."""

    title, sizes = "Cross-entropy", "rows x vocabulary"
    # Llama 2, GPT-2, Llama 3, Qwen 2
    shapes = ((4096, 32000), (4096, 50257), (4096, 128256), (4096, 151936))

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return torch.randn(shape), torch.randint(shape[-1], shape[:-1])

    def eager(self, logits: Any, targets: Any) -> Any:
        return functional.cross_entropy(logits, targets)

    liger = _call_of("liger", "liger_cross_entropy")
    quack = _call_of("quack", "cross_entropy")


class Matmul(nn.Module):
    """The product of two row-major matrices; *weight*, where given, is the second and constant."""

    title, sizes = "Matmuls", "M x K x N"
    # AlexNet, BERT, GPT-2: those of torch's own microbenchmark inductor_mm.py.
    shapes: Sequence[Sizes] = (
        *((128, 9216, 4096), (128, 4096, 4096), (128, 4096, 1000)),
        *((2048, 768, 768), (2048, 768, 3072), (2048, 3072, 768)),
        *((1024, 768, 768), (1024, 768, 3072), (1024, 3072, 768), (1024, 768, 2304)),
    )

    def __init__(self, weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight, requires_grad=False)

    def inputs(self, shape: Sizes) -> tuple[torch.Tensor, ...]:
        m, k, n = shape
        return torch.randn(m, k), *([torch.randn(k, n)] if self.weight is None else [])

    def flops(self, shape: Sizes) -> int:
        return 2 * math.prod(shape)

    def eager(self, a: torch.Tensor, b: torch.Tensor | None = None) -> Any:
        return torch.mm(a, self.weight if b is None else b)  # type: ignore[arg-type]


LAYERS: Final[Mapping[str, type[Layer]]] = {
    "rmsnorm": RmsNorm,
    "softmax": Softmax,
    "cross-entropy": CrossEntropy,
    "swiglu": SwiGlu,
    "layernorm": LayerNorm,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLayer:
    """A checked `Layer`; ``backends`` are its methods by name, ``eager`` first.

    ``titles`` are the title of the layer and the names of its sizes. Methods that torch's own
    classes have too, such as ``train`` and ``half``, are no backends.
    """

    name: str
    titles: tuple[str, str]
    shapes: tuple[Sizes, ...]
    definition: Any
    backends: Mapping[str, Operator]

    @classmethod
    def of(cls, definition: Any, name: str) -> OpenLayer:
        shapes = [tuple(shape) for shape in getattr(definition, "shapes", ())]
        methods = [getattr(definition, method, None) for method in (EAGER, "inputs")]
        if len({len(shape) for shape in shapes}) != 1 or not all(map(callable, methods)):
            raise SettingsError(
                f"layer {name} lacks shapes of one length, inputs(shape) or eager(*inputs)",
                "define them as docs/how-to/bench.md says",
            )
        bases = type(definition).__mro__
        of_torch = {n for b in bases if b.__module__.startswith("torch.") for n in vars(b)}
        own = [
            method
            for base in reversed(bases)
            for method, value in vars(base).items()
            if callable(value) and not method.startswith("_")
            if method not in _RESERVED | of_torch
        ]
        return cls(
            name=name,
            titles=(
                getattr(definition, "title", "") or name,
                getattr(definition, "sizes", "shape"),
            ),
            shapes=parse_shapes(",".join(map(spell_shape, shapes))),
            definition=definition,
            backends={each: getattr(definition, each) for each in dict.fromkeys((EAGER, *own))},
        )

    @property
    def weights(self) -> list[torch.Tensor]:
        module = self.definition
        return list(module.parameters()) if isinstance(module, nn.Module) else []

    def move_to(self, device: str, dtype: torch.dtype) -> None:
        if isinstance(self.definition, nn.Module):
            self.definition.to(device=device, dtype=dtype)
            self.definition.eval().requires_grad_(requires_grad=False)

    def eager_in(self, dtype: torch.dtype) -> Operator:
        if not isinstance(self.definition, nn.Module):
            return self.backends[EAGER]
        exact: Any = copy.deepcopy(self.definition).to(dtype)
        return exact.eager  # type: ignore[no-any-return]

    def count(self, what: str, *arguments: object) -> int | None:
        own = getattr(self.definition, what, None)
        value = None if own is None else own(*arguments)
        if value is None:
            return None
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SettingsError(
                f"{what} of layer {self.name} returned {value!r}", "return a number above 0"
            )
        return round(value)

    def inputs(self, shape: Sizes, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Return the inputs at *shape* on *device*, the same at every call; floats in *dtype*."""
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(SEED)
            given = self.definition.inputs(shape)
        values = list(given) if isinstance(given, tuple | list) else [given]
        if not all(isinstance(value, torch.Tensor) for value in values) or not any(
            value.is_floating_point() for value in values
        ):
            raise SettingsError(
                f"inputs of layer {self.name} are no tensors, or none of them is floating",
                "return a tuple of tensors",
            )
        return [x.detach().to(device, dtype if x.is_floating_point() else x.dtype) for x in values]


def spell_shape(shape: Sequence[object]) -> str:
    return "x".join(map(str, shape))


def parse_shapes(text: str, count: int | None = None) -> tuple[Sizes, ...]:
    """Return the shapes in ``"4096x1024,8192x4096"``, in the order given, each of *count* sizes."""
    shapes: dict[Sizes, None] = {}
    for word in map(str.strip, text.split(",")):
        shape = tuple(map(int, word.split("x"))) if _SHAPE.fullmatch(word) else ()
        if not shape or shape in shapes or count not in (None, len(shape)):
            raise SettingsError(
                f"--shapes: {word!r} is no shape of {count or 'some'} sizes, or given twice",
                "write --shapes 4096x1024,8192x4096, each size below ten million",
            )
        shapes[shape] = None
    return tuple(shapes)


def choose(word: str, known: Sequence[str], option: str) -> str:
    if word not in known:
        raise SettingsError(f"{option} {word!r} is unknown", f"use any of {','.join(known)}")
    return word


def open_layers(words: Sequence[str]) -> list[OpenLayer]:
    layers: list[OpenLayer] = []
    for word in words or LAYERS:
        if ":" in word:
            layer = _open(word)
        else:
            layer = OpenLayer.of(LAYERS[choose(word, (*LAYERS, "FILE.py:Class"), "layer")](), word)
        if any(layer.name == other.name for other in layers):
            raise SettingsError(f"layer {layer.name} is given twice", "name each layer once")
        layers.append(layer)
    return layers


def _open(target: str) -> OpenLayer:
    try:
        file, name = open_target(target)
        definition = file.definition(name)
    except ModelError as error:
        text = str(error).replace("--model", "layer").replace("no nn.Module class", "no module")
        raise SettingsError(text, "name it FILE.py:Class") from error
    if isinstance(definition, type):
        try:
            definition = definition()
        except Exception as error:  # the user's class may raise anything
            raise SettingsError(
                f"layer {target}: making it failed ({cause_of(error)})",
                "let the class take no arguments",
            ) from error
    return OpenLayer.of(definition, name)
