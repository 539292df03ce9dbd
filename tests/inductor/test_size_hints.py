"""`hints_of`: the sizes of a range with a question: its lower end, its middle, its tuned size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch._inductor.select_algorithm")  # before its parts, which are a circle

import sympy
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges

from warmup.inductor.gemm.question import SizeHints, hints_of

S, T = sympy.symbols("s0 s1", integer=True, positive=True)


def hints(
    *dims: Any, ranges: dict[Any, tuple[int, int]], at: dict[Any, int], guards: tuple[Any, ...] = ()
) -> tuple[SizeHints, ...]:
    """Return the hints of a GEMM with the sizes *dims* (m, n, k) in a graph with these symbols."""
    m, n, k = dims
    shapes = SimpleNamespace(
        backed_var_to_val={one: sympy.Integer(size) for one, size in at.items()},
        var_to_hint_override={},
        var_to_range={one: ValueRanges(*ends) for one, ends in ranges.items()},
        guards=[SimpleNamespace(expr=guard) for guard in guards],
    )
    nodes = [SimpleNamespace(get_size=lambda size=size: size) for size in ([m, k], [k, n])]
    graph = SimpleNamespace(sizevars=SimpleNamespace(shape_env=shapes))
    with V.set_graph_handler(graph):
        return hints_of(nodes, SimpleNamespace(size=[m, n]))


def test_the_lower_end_the_middle_and_the_tuned_size() -> None:
    """Of the key's first ranged size; symbols go together, and within the guards of the graph."""
    multiple = sympy.Eq(sympy.Mod(S, 16), 0)
    for dims, ranges, at, guards, expected in (
        ((S, 64, 32), {S: (257, 560)}, {S: 560}, (), [257, 408, 560]),
        ((8 * S, 64, 32), {S: (2, 16)}, {S: 16}, (), [16, 72, 128]),
        ((64, 64, S), {S: (2, 16)}, {S: 16}, (), [2, 9, 16]),  # K alone is a range
        ((S, 64, 32), {S: (257, 560)}, {S: 560}, (multiple,), [272, 416, 560]),
        ((S, 64, 32), {S: (2, 2**31)}, {S: 560}, (), [2, 281, 560]),  # none above the tuned size
        ((560, 64, 32), {}, {}, (), []),
        ((S, 64, 32), {S: (2, 560)}, {}, (), []),  # inductor only guesses its size
    ):
        found = hints(*dims, ranges=ranges, at=at, guards=guards)
        assert [one.size for one in found] == expected, (dims, guards)
    found = hints(S, T, 32, ranges={S: (2, 16), T: (10, 30)}, at={S: 16, T: 30})
    assert [dict(one.symbols) for one in found] == [{S: 2, T: 10}, {S: 9, T: 20}, {S: 16, T: 30}]
