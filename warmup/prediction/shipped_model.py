"""`shipped_model`: the device model that ships with warmup for a device, if any does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from warmup.core.runtime import Runtime

_SHIPPED_MODELS: Final = Path(__file__).resolve().parent / "models"


def shipped_model(here: Runtime) -> Path | None:
    """Return the file of the device model for the device of *here*, None where none ships.

    Its versions of torch and triton may be others: whoever reads it compares them.
    """
    path = _SHIPPED_MODELS / f"{here.device.slug}.model.json"
    return path if path.is_file() else None
