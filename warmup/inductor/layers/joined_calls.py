"""`join_calls`: one opaque call for calls of layers that follow each other in a graph.

Dynamo's graph around the layers has a node for each call, ``warmup::layer``. What AOTAutograd and
inductor do for a node they would do for each of them, in each bucket. Calls with no other
operation between them become one node, ``warmup::layers``, whose text says which call gets which
tensor, so that the key of a cached graph has it. A start then costs the same for many layers as
for two, but for dynamo's trace. An operation between two layers ends a run of calls.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._inductor import compile_fx as compile_fx_module
from torch.fx import Graph, GraphModule, Node

from warmup.inductor.layers.call_steps import OF_INPUTS, CallStep, CallSteps, StepPlace

_NO_OPERATIONS: Final = {"placeholder", "get_attr", "output"}


def compile_around(entry: Callable[..., Any], mode: str | None) -> Callable[..., Any]:
    """Return *entry*, which calls layers by the opaque op, compiled in *mode* as a single graph."""
    options = dict(torch._inductor.list_mode_options(mode)) if mode else {}

    def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        join_calls(graph)
        return compile_fx_module.compile_fx(graph, list(inputs), config_patches=options)

    return torch.compile(entry, dynamic=False, fullgraph=True, backend=compile_graph)


def join_calls(module: GraphModule) -> None:
    """Join the calls of layers in *module*, dynamo's graph, that no other operation separates."""
    for run in _runs(module.graph):
        _join(module.graph, run)
    module.recompile()


def _runs(graph: Graph) -> list[list[Node]]:
    """Return the longest runs of at least two calls."""
    runs: list[list[Node]] = [[]]
    for node in graph.nodes:
        if _is_call(node):
            runs[-1].append(node)
        elif node.op not in _NO_OPERATIONS and not _is_output_of_call(node) and runs[-1]:
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _is_call(node: Node) -> bool:
    """Whether *node* calls a layer, and all that is used of it are single outputs."""
    is_layer = node.op == "call_function" and node.target is torch.ops.warmup.layer
    return is_layer and all(user.target is operator.getitem for user in node.users)


def _is_output_of_call(node: Node) -> bool:
    return (
        node.target is operator.getitem
        and isinstance(node.args[0], Node)
        and _is_call(node.args[0])
    )


def _join(graph: Graph, calls: Sequence[Node]) -> None:
    number_of = {call: index for index, call in enumerate(calls)}
    places: dict[Any, StepPlace] = {}
    for call, index in number_of.items():
        for output in call.users:
            _, position = output.args
            assert isinstance(position, int)  # all users are items of a list
            places[output] = index, position
    outputs = [*places]
    read: Any = [call.args for call in calls]  # of each: tensors, number, name of the outputs
    inputs = [
        each
        for each in dict.fromkeys(itertools.chain(*(of[0] for of in read)))
        if each not in places
    ]
    places |= {node: (OF_INPUTS, position) for position, node in enumerate(inputs)}
    steps = [
        CallStep(number, name, tuple(places[each] for each in of)) for of, number, name in read
    ]
    used = [each for each in outputs if any(user not in number_of for user in each.users)]
    results = tuple(dict.fromkeys(places[each] for each in used))
    text = CallSteps.of(steps, results).text()
    with graph.inserting_after(calls[-1]):
        joined = graph.call_function(torch.ops.warmup.layers, (inputs, text))
    examples = {places[each]: each.meta.get("example_value") for each in used}
    joined.meta["example_value"] = [examples[place] for place in results]
    for place in reversed(results):
        with graph.inserting_after(joined):
            made = graph.call_function(operator.getitem, (joined, results.index(place)))
        for output in used:
            if places[output] == place:
                made.meta.update(output.meta)
                output.replace_all_uses_with(made, lambda user: user not in number_of)
    for call in reversed(calls):
        for output in [*call.users]:
            graph.erase_node(output)
        graph.erase_node(call)
