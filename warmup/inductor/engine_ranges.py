"""`bounded_by_engine`: the ranges of a graph's sizes, with the upper end that an engine knows.

vLLM compiles a graph with a dynamic size for each of its ranges of token counts, and sends a call
to the graph of its range. Torch's ShapeEnv does not know the range, and has no upper end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import sympy
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges

# vLLM 0.32.0 has it here; older releases one folder up.
_MODULES: Final = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")


def bounded_by_engine(ranges: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return *ranges* of symbols, that of the engine's size with its upper end.

    Unchanged outside of vLLM, and where inductor lowers no graph. The size is the graph's first
    input that is a symbol (vLLM 0.32.0, ``sym_shape_indices`` of compilation/piecewise_backend.py).
    """
    largest = largest_size_of_engine()
    inputs: Any = getattr(V.graph, "graph_inputs", None)
    if largest is None or not isinstance(inputs, Mapping):
        return ranges
    symbol = next((each for each in inputs.values() if isinstance(each, sympy.Symbol)), None)
    if symbol not in ranges:
        return ranges
    return {**ranges, symbol: ValueRanges(ranges[symbol].lower, sympy.Integer(largest))}


def largest_size_of_engine() -> int | None:
    """Return the end of the range that vLLM compiles in this thread; None outside of vLLM.

    Source: vLLM 0.32.0, `get_pass_context` (compilation/passes/inductor_pass.py), whose
    ``compile_range`` vLLM sets around each compile (compilation/piecewise_backend.py). Nothing of
    vLLM is imported.
    """
    for name in _MODULES:
        context_of: Any = getattr(sys.modules.get(name), "get_pass_context", None)
        if context_of is None:
            continue
        try:
            context = context_of()
        except AssertionError:  # what vLLM raises while it compiles nothing
            return None
        end = getattr(getattr(context, "compile_range", None), "end", None)
        return end if isinstance(end, int) else None
    return None
