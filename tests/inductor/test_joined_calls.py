"""Calls of layers that follow each other are one node of the graph around the layers."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.fx import Graph, GraphModule, Node

import warmup
from warmup.inductor.layers.call_steps import OF_INPUTS, CallStep, CallSteps, call_steps, run_steps
from warmup.inductor.layers.joined_calls import join_calls
from warmup.inductor.layers.opaque_call import (
    LayerProgram,
    OtherLayoutError,
    TensorLayout,
    define_op,
    run_program,
    tracing_program,
)

SHAPE = 2, 3


@pytest.fixture(autouse=True)
def _ops() -> None:
    define_op()


def call(graph: Graph, inputs: Sequence[Node], number: int, outputs: int = 1) -> list[Node]:
    """Add a call of a layer as dynamo does, with an item for each output."""
    made = graph.call_function(torch.ops.warmup.layer, ([*inputs], number, f"name{number}"))
    return [graph.call_function(operator.getitem, (made, each)) for each in range(outputs)]


def targets(module: GraphModule) -> list[str]:
    """Return the names of the operations of *module*, without items of lists."""
    calls = module.graph.find_nodes(op="call_function", target=operator.getitem)
    nodes = [each for each in module.graph.nodes if each.op == "call_function"]
    return [str(each.target) for each in nodes if each not in calls]


def program_of(*calls: Any) -> LayerProgram:
    """Return the program of *calls* of one tensor each."""
    layout = TensorLayout.of(torch.empty(SHAPE))
    one = (layout,)
    return LayerProgram([*calls], [one] * len(calls), [one] * len(calls))


def chain(length: int) -> GraphModule:
    """Return a graph of *length* layers, each called with what the one before returned."""
    graph = Graph()
    value = graph.placeholder("x")
    for number in range(length):
        (value,) = call(graph, [value], number)
    graph.output(value)
    return GraphModule({}, graph)


@pytest.mark.parametrize("length", [2, 32])
def test_a_chain_of_layers_is_one_call(length: int) -> None:
    """However many layers there are, AOTAutograd and inductor get one node."""
    module = chain(length)
    join_calls(module)
    assert targets(module) == ["warmup.layers"]


def test_one_layer_keeps_its_call() -> None:
    """There is nothing to join."""
    module = chain(1)
    join_calls(module)
    assert targets(module) == ["warmup.layer"]


def test_joined_calls_return_what_the_calls_return() -> None:
    """The same tensors come out, in the same places."""
    program = program_of(lambda each: [each[0] + 1], lambda each: [each[0] * 2])
    module, joined = chain(2), chain(2)
    join_calls(joined)
    x = torch.ones(SHAPE)
    assert torch.equal(run_program(program, module, (x,), {}), torch.full(SHAPE, 4.0))
    assert torch.equal(run_program(program, joined, (x,), {}), torch.full(SHAPE, 4.0))


def test_an_operation_between_calls_separates_them() -> None:
    """The order of the model's own operations and its layers is kept."""
    graph = Graph()
    x = graph.placeholder("x")
    (a,) = call(graph, [x], 0)
    (b,) = call(graph, [a], 1)
    c = graph.call_function(torch.relu, (b,))
    (d,) = call(graph, [c], 2)
    (e,) = call(graph, [d], 3)
    graph.output(e)
    module = GraphModule({}, graph)
    join_calls(module)
    names = [name.rpartition(" ")[2].rstrip(">") for name in targets(module)]
    assert [names[0], names[2]] == ["warmup.layers", "warmup.layers"]
    assert len(names) == 3


def test_outputs_that_the_model_uses_come_out_of_the_middle() -> None:
    """Hidden states of inner layers, and second outputs, as a cache, are results too."""
    graph = Graph()
    x = graph.placeholder("x")
    a, cache = call(graph, [x], 0, outputs=2)
    (b,) = call(graph, [a, x], 1)
    graph.output((b, a, cache))
    module = GraphModule({}, graph)
    join_calls(module)
    program = LayerProgram(
        [lambda each: [each[0] + 1, each[0] - 1], lambda each: [each[0] * each[1]]], [], []
    )
    found = run_program(program, module, (torch.full(SHAPE, 3.0),), {})
    assert [float(each.max()) for each in found] == [12.0, 4.0, 2.0]
    assert targets(module) == ["warmup.layers"]


def test_a_call_whose_list_is_used_whole_is_left_alone() -> None:
    """A list is no tensor that a joined call could return."""
    graph = Graph()
    x = graph.placeholder("x")
    (a,) = call(graph, [x], 0)
    last = graph.call_function(torch.ops.warmup.layer, ([a], 1, "name1"))
    graph.output(last)
    module = GraphModule({}, graph)
    join_calls(module)
    assert targets(module) == ["warmup.layer", "warmup.layer"]


def test_tensors_between_calls_are_let_go() -> None:
    """The memory of a start and of a call is that of two layers, not of all of them."""
    seen: list[Any] = []
    alive: list[int] = []

    def layer(tensors: list[Any], number: int, _: str) -> list[torch.Tensor]:
        found = tensors[0] + number
        gc.collect()
        alive.append(sum(each() is not None for each in seen))
        seen.append(weakref.ref(found))
        return [found]

    steps = [
        CallStep(0, "", ((OF_INPUTS, 0),)),
        *(CallStep(each, "", ((each - 1, 0),)) for each in (1, 2, 3)),
    ]
    run_steps(CallSteps.of(steps, [(3, 0)]), layer, [torch.ones(SHAPE)])
    assert alive == [0, 1, 1, 1]


def test_the_text_of_a_node_gives_the_calls_back() -> None:
    """The key of a cached graph has all that decides what the node runs."""
    steps = CallSteps.of(
        [CallStep(0, "a", ((OF_INPUTS, 0),)), CallStep(1, "b", ((0, 0),))], [(1, 0)]
    )
    assert call_steps(steps.text()) == steps


def test_tracing_checks_every_joined_call() -> None:
    """A layout that a layer was not proved for is an error where the graph is traced."""
    joined = chain(2)
    join_calls(joined)
    program = program_of(lambda each: each, lambda each: each)
    program.outputs[0] = (TensorLayout.of(torch.empty(5, 5)),)
    fake = torch._subclasses.FakeTensorMode()
    with fake, tracing_program(program), pytest.raises(OtherLayoutError, match="call 1"):
        joined(torch.empty(SHAPE))


class Layer(nn.Module):
    """A layer that is a product of the library, so that nothing is written in C++."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        found: torch.Tensor = self.linear(x)
        return found


@pytest.mark.parametrize("length", [2, 12])
def test_code_for_more_layers_has_no_more_calls(length: int) -> None:
    """Inductor compiles two graphs: a layer, and one around the layers, which calls all at once."""
    model = nn.Sequential(*(Layer() for _ in range(length))).eval()
    compiled = warmup.compile(
        model, dims={"input": {0: "n"}}, buckets={"n": (4,)}, policy="exact", layers="once"
    )
    x = torch.randn(4, 8)
    with torch.no_grad(), fresh_cache():
        found, codes = run_and_get_code(compiled, x)
        torch.testing.assert_close(found, model(x))
    _, around = codes
    assert around.count("torch.ops.warmup.layers.default(") == 1
    assert "torch.ops.warmup.layer.default(" not in around
