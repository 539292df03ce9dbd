"""`COMPILE_MODES`: the modes of torch.compile; `CompileOrder`: when a build compiles candidates."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")  # those that record CUDA graphs
COMPILE_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CompileOrder(StrEnum):
    """When the candidates of a graph are compiled: as asked, or all at the same time.

    ``AS_ASKED``: those of a question when inductor asks it. ``BESIDE``: all are sent to the workers
    before the first question is measured, and compile beside measurements. ``BEFORE``: all are
    compiled before the first question is measured, so that the host is idle while it is timed.
    """

    AS_ASKED = "as asked"
    BESIDE = "beside"
    BEFORE = "before"
