"""The backends of a layer: eager PyTorch, inductor with two sets of options, three libraries.

The module of a library is imported at the first use of its operators; without the library that
import fails.
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
# Backend -> the distribution that provides the library.
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
    """Return the operator of *layer* on *backend*, compiled at its first call.

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
    except Exception as error:  # noqa: BLE001  a library may raise any error when imported
        text = " ".join(str(error).split())
        return f"cannot be imported: {type(error).__name__}: {text}"
    return None


def versions() -> dict[str, str]:
    """Return the version of each installed library, by backend."""
    installed: dict[str, str] = {}
    for backend, distribution in LIBRARIES.items():
        try:
            installed[backend] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _module(backend: str) -> Any:
    return importlib.import_module(f"warmup.bench.layers.{backend}")
