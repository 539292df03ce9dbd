"""What computes a layer: eager PyTorch, inductor in two ways, and three libraries.

A library's module is imported when its operators are asked for, and fails to import without it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any, Final

import torch

from warmup.bench.layers.layers import Layer, Operator
from warmup.core.errors import SettingsError

EAGER: Final = "eager"
COMPILED: Final = "compiled"
CUSTOM: Final = "custom"
# Backend -> the distribution that has it.
LIBRARIES: Final[Mapping[str, str]] = {
    "liger": "liger-kernel",
    "quack": "quack-kernels",
    "helion": "helion",
}
LAYER_BACKENDS: Final = (EAGER, COMPILED, CUSTOM, *LIBRARIES)
# Inductor's options for kernels that move memory: more launch configs, and each of them refined.
CUSTOM_OPTIONS: Final[Mapping[str, bool | int]] = {
    "max_autotune_pointwise": True,
    "coordinate_descent_tuning": True,
}


def operator_of(backend: str, layer: Layer) -> Operator:
    """Return *layer* as *backend* computes it. Nothing is compiled before it is called.

    Raises:
        SettingsError: *backend* has no such layer.
        ImportError: the library cannot be imported.
    """
    if backend == EAGER:
        return layer.function
    if backend == COMPILED:
        return torch.compile(layer.function, dynamic=False)
    if backend == CUSTOM:
        return torch.compile(layer.function, dynamic=False, options=dict(CUSTOM_OPTIONS))
    operators: Mapping[str, Operator] = _module(backend).OPERATORS
    if layer.name not in operators:
        raise SettingsError(f"{backend} has no {layer.title} of its own")
    return operators[layer.name]


def missing(backend: str) -> str | None:
    """Return why *backend* cannot be used here, None when it can."""
    if backend not in LIBRARIES:
        return None
    try:
        _module(backend)
    except Exception as error:  # noqa: BLE001  what a library raises when imported is its own matter
        text = " ".join(str(error).split())
        return f"cannot be imported: {type(error).__name__}: {text}"
    return None


def versions() -> dict[str, str]:
    """Return the version of each library that is installed here."""
    found: dict[str, str] = {}
    for backend, distribution in LIBRARIES.items():
        try:
            found[backend] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _module(backend: str) -> Any:
    return importlib.import_module(f"warmup.bench.layers.{backend}")
