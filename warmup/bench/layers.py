"""`bench_layers`: five layers that move memory, and those of the user's file, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import functional

from warmup.bench.backends import (
    KeepReport,
    Layer,
    OpenLayer,
    Sizes,
    choose,
    compare_layers,
    library,
    make_setup,
    parse_shapes,
)
from warmup.bench.cells import BenchReport, Say
from warmup.core.errors import ModelError, SettingsError
from warmup.core.method import L2, Launch
from warmup.models.model_file import cause_of, open_target

LAYER_ROUNDS: Final = 30
EPS: Final = 1e-6  # of all built-in norms
_HIDDEN: Final = ((4096, 1024), (8192, 4096), (16384, 8192), (4096, 16384))


def _near(centre: int, shape: Sizes) -> torch.Tensor:
    return torch.randn(shape[-1]) * 0.1 + centre


class RmsNorm(Layer):
    """x over the root of the mean of its squares, times a weight in the dtype of x."""

    title, sizes, shapes = "RMSNorm", "rows x hidden size", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:  # noqa: D102
        return torch.randn(shape), _near(1, shape)

    def eager(self, x: Any, weight: Any) -> Any:  # noqa: D102
        return functional.rms_norm(x, weight.shape, weight, EPS)

    def liger(self, x: Any, weight: Any) -> Any:  # noqa: D102
        # Not in place: it keeps the gradient of its output.
        return library("liger").liger_rms_norm(x, weight, EPS, in_place=False)

    def quack(self, x: Any, weight: Any) -> Any:  # noqa: D102
        return library("quack").rmsnorm(x, weight, eps=EPS)

    def helion(self, x: Any, weight: Any) -> Any:  # noqa: D102
        return library("helion").rms_norm(x, weight, EPS)


class LayerNorm(Layer):
    """x less its mean, over its standard deviation, times a weight, plus a bias."""

    title, sizes, shapes = "LayerNorm", "rows x hidden size", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:  # noqa: D102
        return torch.randn(shape), _near(1, shape), _near(0, shape)

    def eager(self, x: Any, weight: Any, bias: Any) -> Any:  # noqa: D102
        return functional.layer_norm(x, weight.shape, weight, bias, EPS)

    def liger(self, x: Any, weight: Any, bias: Any) -> Any:  # noqa: D102
        return library("liger").liger_layer_norm(x, weight, bias, EPS)

    def helion(self, x: Any, weight: Any, bias: Any) -> Any:  # noqa: D102
        return library("helion").layer_norm(x, weight, bias, EPS)


class Softmax(Layer):
    """The softmax of each row."""

    title, sizes, shapes = "Softmax", "rows x columns", _HIDDEN

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:  # noqa: D102
        return (torch.randn(shape),)

    def eager(self, x: Any) -> Any:  # noqa: D102
        return functional.softmax(x, dim=-1)

    def liger(self, x: Any) -> Any:  # noqa: D102
        return library("liger").liger_softmax(x)

    def quack(self, x: Any) -> Any:  # noqa: D102
        return library("quack").softmax(x)

    def helion(self, x: Any) -> Any:  # noqa: D102
        return library("helion").softmax(x)


class SwiGlu(Layer):
    """silu(gate) times up, element by element."""

    title, sizes = "SwiGLU", "rows x intermediate size"
    shapes = ((4096, 3420), (4096, 11008), (8192, 14336), (16384, 8192))

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:  # noqa: D102
        return torch.randn(shape), torch.randn(shape)

    def eager(self, gate: Any, up: Any) -> Any:  # noqa: D102
        return functional.silu(gate) * up

    def liger(self, gate: Any, up: Any) -> Any:  # noqa: D102
        return library("liger").liger_swiglu(gate, up)  # writes gradients over its inputs

    def helion(self, gate: Any, up: Any) -> Any:  # noqa: D102
        return library("helion").swiglu(gate, up)


class CrossEntropy(Layer):
    """The mean over rows of the negative log-likelihood of targets."""

    title, sizes = "Cross-entropy", "rows x vocabulary"
    # Llama 2, GPT-2, Llama 3, Qwen 2
    shapes = ((4096, 32000), (4096, 50257), (4096, 128256), (4096, 151936))

    def inputs(self, shape: Sizes) -> Sequence[torch.Tensor]:  # noqa: D102
        return torch.randn(shape), torch.randint(shape[-1], shape[:-1])

    def eager(self, logits: Any, targets: Any) -> Any:  # noqa: D102
        return functional.cross_entropy(logits, targets)

    def liger(self, logits: Any, targets: Any) -> Any:  # noqa: D102
        return library("liger").liger_cross_entropy(logits, targets)

    def quack(self, logits: Any, targets: Any) -> Any:  # noqa: D102
        return library("quack").cross_entropy(logits, targets)

    def helion(self, logits: Any, targets: Any) -> Any:  # noqa: D102
        return library("helion").cross_entropy(logits, targets)


LAYERS: Final[Mapping[str, type[Layer]]] = {
    "rmsnorm": RmsNorm,
    "softmax": Softmax,
    "cross-entropy": CrossEntropy,
    "swiglu": SwiGlu,
    "layernorm": LayerNorm,
}


def open_layers(text: str | None) -> list[OpenLayer]:
    """Return the layers of *text*, built-in names and ``FILE.py:Class``; all built-in for None.

    Raises:
        SettingsError: a name is unknown or given twice, or a layer cannot be used.
    """
    words = [*LAYERS] if text is None else [word.strip() for word in text.split(",")]
    layers = []
    for word in words:
        if ":" in word:
            layers.append(_open(word))
        else:
            choose(word, (*LAYERS, "FILE.py:Class"), "--layers")
            layers.append(OpenLayer.of(LAYERS[word](), word))
    names = [layer.name for layer in layers]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"--layers: {repeated[0]} is given twice", "name each layer once")
    return layers


def _open(target: str) -> OpenLayer:
    try:
        file, name = open_target(target)
        definition = file.definition(name)
    except ModelError as error:
        text = str(error).replace("--model", "--layers").replace("no nn.Module class", "no module")
        raise SettingsError(text, "write --layers FILE.py:Class") from error
    if isinstance(definition, type):
        try:
            definition = definition()
        except Exception as error:  # the user's class may raise anything
            raise SettingsError(
                f"--layers {target}: making it failed ({cause_of(error)})",
                "let the class take no arguments",
            ) from error
    return OpenLayer.of(definition, name)


def bench_layers(
    *,
    layers: str | None = None,
    backends: str | None = None,
    shapes: str | None = None,
    dtype: str = "bf16",
    rounds: int = LAYER_ROUNDS,
    launch: str = Launch.CUDAGRAPH,
    table: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
    say: Say = lambda _line: None,
    keep: KeepReport = lambda _report: None,
) -> BenchReport:
    """Return the times of *layers* on *backends* over *shapes*, or the reasons for missing times.

    Arguments have the text form of the command line; the defaults are all built-in layers, all
    backends and each layer's own shapes. Forward is timed, and forward and backward as one call.

    Raises:
        SettingsError: an argument or a layer is not valid.
        TableError: the table cannot be read.
        AdapterError: this torch is not supported.
    """
    places = [
        (layer, shape)
        for layer in open_layers(layers)
        for shape in (parse_shapes(shapes, len(layer.shapes[0])) if shapes else layer.shapes)
    ]
    setup = make_setup(
        "layers", device=device, dtype=dtype, launch=launch, l2=L2.COLD, rounds=rounds
    )
    return compare_layers(
        setup, places, backends=backends, table=table, out=out, say=say, keep=keep
    )
