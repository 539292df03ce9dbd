"""`bench_layers` and `bench_mm`: layers that move memory, those of the user, and plain GEMMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from warmup.bench.backends import (
    KeepReport,
    Layer,
    OpenLayer,
    Operator,
    Sizes,
    choose,
    compare_layers,
    library,
    make_setup,
    parse_shapes,
)
from warmup.bench.cells import BenchReport, BenchRequest, Pass, Say
from warmup.core.errors import ModelError, SettingsError
from warmup.core.method import OptionValue
from warmup.models.loading import cause_of, open_target

EPS: Final = 1e-6  # of all built-in norms
_HIDDEN: Final = ((4096, 1024), (8192, 4096), (16384, 8192), (4096, 16384))
# AlexNet, BERT, GPT-2: those of torch's own microbenchmark inductor_mm.py.
MATMUL_SHAPES: Final[tuple[Sizes, ...]] = (
    *((128, 9216, 4096), (128, 4096, 4096), (128, 4096, 1000)),
    *((2048, 768, 768), (2048, 768, 3072), (2048, 3072, 768)),
    *((1024, 768, 768), (1024, 768, 3072), (1024, 3072, 768), (1024, 768, 2304)),
)
_AUTOTUNED: Final = {"max_autotune_gemm": True}
# Inductor's C++ template needs constant weights.
_ON_CPU: Final[Mapping[str, Mapping[str, OptionValue]]] = {
    "max-autotune": {**_AUTOTUNED, "max_autotune_gemm_backends": "ATEN,CPP", "freezing": True},
    "cpp-template": {**_AUTOTUNED, "max_autotune_gemm_backends": "CPP", "freezing": True},
}
_ON_GPU: Final[Mapping[str, Mapping[str, OptionValue]]] = {
    "max-autotune": {**_AUTOTUNED, "max_autotune_gemm_backends": "ATEN,TRITON"},
    "triton-template": {**_AUTOTUNED, "max_autotune_gemm_backends": "TRITON"},
}


def _near(centre: int, shape: Sizes) -> torch.Tensor:
    return torch.randn(shape[-1]) * 0.1 + centre


def _call_of(backend: str, function: str, *last: float, **options: object) -> Operator:
    """Return the method of a layer that calls *function* of a library on the layer's inputs."""

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
    helion = _call_of("helion", "rms_norm", EPS)


class LayerNorm(Layer):
    """x less its mean, over its standard deviation, times a weight, plus a bias."""

    title, sizes, shapes = "LayerNorm", "rows x hidden size", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return torch.randn(shape), _near(1, shape), _near(0, shape)

    def eager(self, x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, weight.shape, weight, bias, EPS)

    liger = _call_of("liger", "liger_layer_norm", EPS)
    helion = _call_of("helion", "layer_norm", EPS)


class Softmax(Layer):
    """The softmax of each row."""

    title, sizes, shapes = "Softmax", "rows x columns", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return (torch.randn(shape),)

    def eager(self, x: Any) -> Any:
        return functional.softmax(x, dim=-1)

    liger = _call_of("liger", "liger_softmax")
    quack = _call_of("quack", "softmax")
    helion = _call_of("helion", "softmax")


class SwiGlu(Layer):
    """silu(gate) times up, element by element."""

    title, sizes = "SwiGLU", "rows x intermediate size"
    shapes = ((4096, 3420), (4096, 11008), (8192, 14336), (16384, 8192))

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:
        return torch.randn(shape), torch.randn(shape)

    def eager(self, gate: Any, up: Any) -> Any:
        return functional.silu(gate) * up

    liger = _call_of("liger", "liger_swiglu")  # writes gradients over its inputs
    helion = _call_of("helion", "swiglu")


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
    helion = _call_of("helion", "cross_entropy")


class Matmul(nn.Module):
    """The product of two row-major matrices; *weight*, where given, is the second and constant."""

    title, sizes = "Matmuls", "M x K x N"

    def __init__(self, shapes: Sequence[Sizes], weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.shapes = shapes
        self.weight = None if weight is None else nn.Parameter(weight, requires_grad=False)

    def inputs(self, shape: Sizes) -> tuple[torch.Tensor, ...]:
        """Return the matrices of *shape*, M x K x N, without the weight."""
        m, k, n = shape
        return torch.randn(m, k), *([torch.randn(k, n)] if self.weight is None else [])

    def flops(self, shape: Sizes) -> int:
        """Return the operations: a multiplication and an addition for each step of K."""
        m, k, n = shape
        return 2 * m * k * n

    def eager(self, a: torch.Tensor, b: torch.Tensor | None = None) -> Any:
        """Return the product by the library, cuBLAS or mkl."""
        return torch.mm(a, self.weight if b is None else b)  # type: ignore[arg-type]


LAYERS: Final[Mapping[str, type[Layer]]] = {
    "rmsnorm": RmsNorm,
    "softmax": Softmax,
    "cross-entropy": CrossEntropy,
    "swiglu": SwiGlu,
    "layernorm": LayerNorm,
}


def open_layers(words: Sequence[str] = ()) -> list[OpenLayer]:
    """Return the layers *words*, built-in names and ``FILE.py:Class``; all built-in without any.

    Raises:
        SettingsError: a name is unknown or given twice, or a layer cannot be used.
    """
    layers = []
    for word in words or LAYERS:
        if ":" in word:
            layers.append(_open(word))
        else:
            choose(word, (*LAYERS, "FILE.py:Class"), "layer")
            layers.append(OpenLayer.of(LAYERS[word](), word))
    names = [layer.name for layer in layers]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"layer {repeated[0]} is given twice", "name each layer once")
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


def bench_layers(
    request: BenchRequest,
    *,
    layers: Sequence[str] = (),
    say: Say = lambda _line: None,
    keep: KeepReport = lambda _report: None,
) -> BenchReport:
    """Return the times of *layers*, all built-in without any, or the reasons for missing times.

    Forward is timed, and forward and backward as one call.

    Raises:
        SettingsError: a field of *request* or a layer is not valid.
        TableError: the table cannot be read.
        AdapterError: this torch is not supported.
    """
    text = request.shapes
    places = [
        (layer, shape)
        for layer in open_layers(layers)
        for shape in (parse_shapes(text, len(layer.shapes[0])) if text else layer.shapes)
    ]
    return compare_layers(request, make_setup("layers", request), places, say=say, keep=keep)


def bench_mm(
    request: BenchRequest,
    *,
    say: Say = lambda _line: None,
    keep: KeepReport = lambda _report: None,
) -> BenchReport:
    """Return the times of GEMMs, of `MATMUL_SHAPES` by default, or the reasons for missing times.

    On a CPU the second matrix is a constant weight. Raises what `bench_layers` raises.
    """
    shapes = MATMUL_SHAPES if request.shapes is None else parse_shapes(request.shapes, 3)
    setup = make_setup("mm", request)
    is_cpu = setup.device.type == "cpu"
    setup = replace(setup, steps=(Pass.FORWARD,), compiled=_ON_CPU if is_cpu else _ON_GPU)
    places = [
        (OpenLayer.of(Matmul([shape], torch.randn(shape[1:]) if is_cpu else None), "mm"), shape)
        for shape in shapes
    ]
    return compare_layers(request, setup, places, say=say, keep=keep)
