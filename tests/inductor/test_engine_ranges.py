"""Sizes of a graph that an engine compiles for a range; a module has the interface of vLLM's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.source import ConstantSource  # noqa: E402  where torch is installed
from torch._inductor.virtualized import V  # noqa: E402
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv  # noqa: E402

from warmup.inductor.gemm.key import (  # noqa: E402
    dim_of,
    largest_size_of_engine,
)

NAME = "vllm.compilation.passes.inductor_pass"


def symbol(shapes: Any, name: str) -> Any:
    return shapes.create_symbol(17, ConstantSource(name), dynamic_dim=DimDynamic.DYNAMIC)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(NAME)
    range_ = SimpleNamespace(start=1, end=128)
    module.get_pass_context = lambda: SimpleNamespace(compile_range=range_)  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


def dims_in_graph(shapes: Any, inputs: list[Any], sizes: list[Any]) -> list[str]:
    """Return *sizes* as a key has them, while a graph with *inputs* is lowered."""
    graph = SimpleNamespace(graph_inputs={f"arg{i}": each for i, each in enumerate(inputs)})
    with V.set_graph_handler(graph):
        return [str(dim_of(size, shapes)) for size in sizes]


def test_the_first_size_has_the_upper_end_of_the_engines_range(engine: ModuleType) -> None:
    """The graph's first size, and what is computed from it."""
    shapes = ShapeEnv()
    rows = symbol(shapes, "rows")
    assert dims_in_graph(shapes, [object(), rows], [rows, 2 * rows]) == ["2..128", "4..256"]
    # The engine's range is that of the first size alone.
    shapes = ShapeEnv()
    rows, other = symbol(shapes, "rows"), symbol(shapes, "other")
    assert dims_in_graph(shapes, [rows, other], [other, rows]) == ["2..", "2..128"]


def test_an_engine_that_compiles_nothing_has_no_range(engine: ModuleType) -> None:
    """The AssertionError that vLLM raises then is no end of a range."""

    def nothing() -> None:
        raise AssertionError

    engine.get_pass_context = nothing  # type: ignore[attr-defined]  # made by the fixture
    assert largest_size_of_engine() is None


def test_without_an_engine_there_is_no_range() -> None:
    """Nothing of an engine is imported to ask."""
    assert largest_size_of_engine() is None
    assert NAME not in sys.modules
