"""What differs between torch minors: one module for each, selected once by `version_for`.

Imports `core`; `warmup.inductor.adapter` passes the selected module to the hooks. To drop a minor,
move into the next module what that imports from it, and delete it and its entry in SUPPORTED.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from warmup.core.errors import InductorChangedError, UnsupportedTorchError

SUPPORTED: Final = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))


class Version(Protocol):
    """What the module of each torch minor provides."""

    INTERNALS: tuple[str, ...]
    TemplateParams: Callable[[dict[str, Any]], Any]

    def forget_config_hash(self, module: Any) -> None:
        """Make a config module recompute its hash after a default was changed."""

    def fusion_score(self, scheduler: Any, node1: Any, node2: Any, score: int) -> int:
        """Return the bytes that a template and another node share; *score* is the scheduler's."""


def check_supported(torch_version: str) -> tuple[int, int]:
    """Return major and minor of *torch_version*, such as ``2.13.0+cpu``.

    Raises:
        UnsupportedTorchError: *torch_version* is outside the supported range.
    """
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    minor = (int(match[1]), int(match[2])) if match else (0, 0)
    if minor not in SUPPORTED:
        low, high = SUPPORTED[0], SUPPORTED[-1]
        raise UnsupportedTorchError(torch_version, f"{low[0]}.{low[1]} to {high[0]}.{high[1]}")
    return minor


def version_for(torch_version: str) -> Version:
    """Return the module for *torch_version*.

    Raises:
        UnsupportedTorchError: *torch_version* is outside the supported range.
        InductorChangedError: an internal that the module imports is gone.
    """
    major, minor = check_supported(torch_version)
    try:
        module = importlib.import_module(f"{__name__}.v{major}_{minor}")
    except ImportError as error:
        raise InductorChangedError(str(error)) from error
    return cast(Version, module)
