"""Size hints of a selection whose sizes are ranges: those below its own, and its choices there.

A kernel of a dynamic size takes it when it is called, so one choice can be measured at any size.
What inductor tells of a choice (operands, launch grid, sizes as arguments) it works out from the
hints of symbols. Here those are other ones for a while.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from torch._inductor.codegen.cpp_template_kernel import CppTemplateCaller
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import (
    DataProcessorChoiceCallerWrapper,
    ExternKernelCaller,
)
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V

HintedSizes = Mapping[sympy.Symbol, int]


@dataclass(frozen=True, slots=True)
class Hints:
    """HintedSizes of all symbols of a selection, and the first size of its key that is a range."""

    symbols: HintedSizes
    size: int


def hints_of(input_nodes: Sequence[Any], layout: Any) -> tuple[Hints, ...]:
    """Return the lower end of a selection's range, its middle, and what it is tuned at, ascending.

    All its symbols are at their lower ends, or in the middle, together. Sizes that the graph's
    guards exclude are stepped over. Nothing where no size is a range, or one has no hint.
    """
    dims = [sympy.sympify(dim) for dim in (*layout.size, input_nodes[0].get_size()[-1])]
    ranged = next((dim for dim in dims if dim.free_symbols), None)
    shapes = V.graph.sizevars.shape_env
    every = [size for node in input_nodes for size in node.get_size()]
    symbols = set().union(*(sympy.sympify(size).free_symbols for size in (*every, *dims)))
    known = {**shapes.backed_var_to_val, **shapes.var_to_hint_override}
    if ranged is None or not symbols <= shapes.backed_var_to_val.keys():
        return ()
    tuned = {symbol: int(known[symbol]) for symbol in sorted(symbols, key=str)}
    lows = {symbol: _low(symbol, shapes) for symbol in tuned}
    middles = {symbol: (lows[symbol] + size) // 2 for symbol, size in tuned.items()}
    steps = [
        {one: _served(one, at[one], tuned[one], shapes) for one in at} for at in (lows, middles)
    ]
    found = {int(ranged.xreplace(at)): at for at in (*steps, tuned)}
    return tuple(Hints(found[size], size) for size in sorted(found))


def _low(symbol: sympy.Symbol, shapes: Any) -> int:
    lower = shapes.var_to_range[symbol].lower
    return max(int(lower), 1) if isinstance(lower, sympy.Integer) else 1


def _served(symbol: sympy.Symbol, start: int, end: int, shapes: Any) -> int:
    """Return the first size from *start* up to *end* that no guard on *symbol* alone excludes."""
    guards = [guard.expr for guard in shapes.guards if guard.expr.free_symbols == {symbol}]
    return next(
        (size for size in range(start, end) if all(_holds(one, symbol, size) for one in guards)),
        end,
    )


def _holds(guard: Any, symbol: sympy.Symbol, size: int) -> bool:
    return guard.xreplace({symbol: sympy.Integer(size)}) is not sympy.false


@contextlib.contextmanager
def hinted(symbols: HintedSizes) -> Iterator[None]:
    """Let inductor find *symbols* as the hints of the graph being lowered while this is open.

    No guard that comes of it, and nothing that is worked out from these hints, is kept.
    """
    graph, own = V.graph, V.graph.sizevars
    shapes = copy.copy(own.shape_env)
    hints = {symbol: sympy.Integer(size) for symbol, size in symbols.items()}
    overrides = {
        symbol: symbols[symbol] for symbol in symbols if symbol in shapes.var_to_hint_override
    }
    shapes.backed_var_to_val = {**shapes.backed_var_to_val, **hints}
    shapes.var_to_hint_override = {**shapes.var_to_hint_override, **overrides}
    shapes.guards = list(shapes.guards)
    sizevars = SizeVarAllocator(shapes)
    sizevars.precomputed_replacements = own.precomputed_replacements
    sizevars.inv_precomputed_replacements = own.inv_precomputed_replacements
    graph.sizevars = sizevars
    try:
        with shapes.suppress_guards():
            yield
    finally:
        graph.sizevars = own


def rehinted(choice: Any) -> Any | None:
    """Return *choice* as it is called with the hints of now; None where another kernel would be."""
    if isinstance(choice, DataProcessorChoiceCallerWrapper):
        inner = rehinted(choice._wrapped)
        made = DataProcessorChoiceCallerWrapper(inner, choice._preprocessor, choice._postprocessor)
        return None if inner is None else made
    if isinstance(choice, ExternKernelCaller):
        return choice
    if isinstance(choice, CppTemplateCaller):
        other = choice.template.generate()
        return other if other.bmreq.source_code == choice.bmreq.source_code else None
    origin = getattr(choice, "annotations", {}).get("ktc")
    if isinstance(choice, SubgraphChoiceCaller) or origin is None:
        return None
    fresh: Any = KernelTemplateChoice(
        origin.template, origin.params, origin.extra_kwargs, origin.layout, origin.inputs
    ).choice
    same = fresh is not None and fresh.bmreq.module_cache_key == choice.bmreq.module_cache_key
    return fresh if same else None
