"""`COMPILE_MODES`: the modes of torch.compile in which a table can be primed and bundled."""

from __future__ import annotations

from typing import Final

COMPILE_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
