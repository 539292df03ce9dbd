"""`COMPILE_MODES`: the modes of torch.compile, and which of them record CUDA graphs."""

from __future__ import annotations

from typing import Final

GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")  # those that record CUDA graphs
COMPILE_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
