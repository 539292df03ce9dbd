"""."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass


MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
