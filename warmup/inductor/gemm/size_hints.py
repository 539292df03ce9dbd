"""`hints_of`: smaller sizes for a selection whose sizes are ranges; `using_hints`: lowering there.

A kernel with a dynamic size receives the size at each call, so that a choice can be measured at any
size. Inductor computes operands, launch grid and size arguments of a choice from the size hints of
symbols, which `using_hints` replaces for a while.
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

SymbolHints = Mapping[sympy.Symbol, int]


@dataclass(frozen=True, slots=True)
class SizeHints:
    """A hint for each symbol of a selection, and its key's first ranged size under these hints."""

    symbols: SymbolHints
    size: int


def hints_of(input_nodes: Sequence[Any], layout: Any) -> tuple[SizeHints, ...]:
    """Return hints for the lower end of a selection's range, its middle and its tuned size.

    In ascending order. All symbols are at their lower ends, or in the middle, together; sizes that
    a guard of the graph excludes are skipped. Empty if no size is a range or a symbol has no hint.
    """
    dims = [sympy.sympify(dim) for dim in (*layout.size, input_nodes[0].get_size()[-1])]
    ranged = next((dim for dim in dims if dim.free_symbols), None)
    shapes = V.graph.sizevars.shape_env
    sizes = [size for node in input_nodes for size in node.get_size()]
    symbols = set().union(*(sympy.sympify(size).free_symbols for size in (*sizes, *dims)))
    known = {**shapes.backed_var_to_val, **shapes.var_to_hint_override}
    if ranged is None or not symbols <= shapes.backed_var_to_val.keys():
        return ()
    tuned = {symbol: int(known[symbol]) for symbol in sorted(symbols, key=str)}
    lows = {symbol: _low(symbol, shapes) for symbol in tuned}
    middles = {symbol: (lows[symbol] + size) // 2 for symbol, size in tuned.items()}
    smaller = [
        {symbol: _allowed(symbol, start, tuned[symbol], shapes) for symbol, start in starts.items()}
        for starts in (lows, middles)
    ]
    by_size = {int(ranged.xreplace(hints)): hints for hints in (*smaller, tuned)}
    return tuple(SizeHints(by_size[size], size) for size in sorted(by_size))


def _low(symbol: sympy.Symbol, shapes: Any) -> int:
    lower = shapes.var_to_range[symbol].lower
    return max(int(lower), 1) if isinstance(lower, sympy.Integer) else 1


def _allowed(symbol: sympy.Symbol, start: int, end: int, shapes: Any) -> int:
    """Return the first size from *start* up to *end* that no guard on *symbol* alone excludes."""
    guards = [guard.expr for guard in shapes.guards if guard.expr.free_symbols == {symbol}]
    return next(
        (size for size in range(start, end) if all(_holds(each, symbol, size) for each in guards)),
        end,
    )


def _holds(guard: Any, symbol: sympy.Symbol, size: int) -> bool:
    return guard.xreplace({symbol: sympy.Integer(size)}) is not sympy.false


@contextlib.contextmanager
def using_hints(symbols: SymbolHints) -> Iterator[None]:
    """Replace the size hints of the graph being lowered by *symbols* while the context is open.

    Guards added and sizes computed inside are dropped.
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


def choice_at_hints(choice: Any) -> Any | None:
    """Return *choice* as called with the current hints; None if they need another kernel."""
    if isinstance(choice, DataProcessorChoiceCallerWrapper):
        inner = choice_at_hints(choice._wrapped)
        wrapper = DataProcessorChoiceCallerWrapper(
            inner, choice._preprocessor, choice._postprocessor
        )
        return None if inner is None else wrapper
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
