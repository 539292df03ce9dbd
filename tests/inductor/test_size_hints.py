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
    found = hints(S, 64, 32, ranges={S: (257, 560)}, at={S: 560})
    assert [(one.size, one.symbols) for one in found] == [
        (257, {S: 257}),
        (408, {S: 408}),
        (560, {S: 560}),
    ]


def test_constants_and_unknown_symbols_have_no_hints() -> None:
    assert hints(560, 64, 32, ranges={}, at={}) == ()
    # A symbol without a hint gives no sizes: inductor only guesses its size.
    assert hints(S, 64, 32, ranges={S: (2, 560)}, at={}) == ()


def test_sizes_are_those_of_the_keys_range() -> None:
    """The size of 8 * s is eight times the hint of s."""
    found = hints(8 * S, 64, 32, ranges={S: (2, 16)}, at={S: 16})
    assert [one.size for one in found] == [16, 72, 128]
    # The size is the key's first ranged size, here K.
    found = hints(64, 64, S, ranges={S: (2, 16)}, at={S: 16})
    assert [one.size for one in found] == [2, 9, 16]


def test_several_symbols_go_together() -> None:
    found = hints(S, T, 32, ranges={S: (2, 16), T: (10, 30)}, at={S: 16, T: 30})
    assert [dict(one.symbols) for one in found] == [{S: 2, T: 10}, {S: 9, T: 20}, {S: 16, T: 30}]


def test_sizes_stay_within_the_guards_and_the_tuned_size() -> None:
    """In a graph for multiples of 16, sizes move up to the next multiple."""
    guard = sympy.Eq(sympy.Mod(S, 16), 0)
    found = hints(S, 64, 32, ranges={S: (257, 560)}, at={S: 560}, guards=(guard,))
    assert [one.size for one in found] == [272, 416, 560]
    # A range without an upper end has smaller sizes, and none above the tuned size.
    found = hints(S, 64, 32, ranges={S: (2, 2**31)}, at={S: 560})
    assert [one.size for one in found] == [2, 281, 560]
