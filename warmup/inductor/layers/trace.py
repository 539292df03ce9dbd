"""`LayerTrace`: what dynamo and inductor show while they compile and first run one layer."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import builder
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor.output_code import CompiledFxGraph

from warmup.inductor.layers.form import UnshareableLayerError
from warmup.inductor.layers.place import LAYER, readable
from warmup.inductor.layers.reads import Reads
from warmup.inductor.layers.weight_tape import WeightTape
from warmup.inductor.patches import Patches

_MADE_HERE: Final = ("AttributeMutationNew", "ValueMutationNew")
# Small constants would be written into the code, and a cached graph shows no packing.
_FROZEN: Final = {"always_keep_tensor_constants": True, "fx_graph_cache": False}


@dataclass(slots=True)
class LayerTrace:
    """What the compile and the first run of a layer showed."""

    sources: list[Any] = field(default_factory=list)  # of the inputs of dynamo's graph
    reads: Reads = field(default_factory=Reads)
    refusal: str | None = None
    graph: Any = None  # inductor's
    inputs: list[Any] | None = None
    outputs: Sequence[Any] = ()
    tape: WeightTape | None = None  # of a compile that freezes weights


def tracing_backend(trace: LayerTrace, mode: str | None) -> Callable[..., Any]:
    """Return the backend that compiles in *mode*, without CUDA graphs, and fills *trace*.

    It raises an `UnshareableLayerError`, which dynamo wraps, for a graph that needs more than its
    kernels. Where inductor freezes weights, they are constants of the compiled graph.
    """

    def compile_graph(graph: Any, inputs: Sequence[Any]) -> Any:
        trace.refusal = _refusal(graph)
        if trace.refusal is not None:
            raise UnshareableLayerError(trace.refusal)
        for guard in InstructionTranslator.current_tx().output.guards:
            trace.reads.add(guard.originating_source, f"L['{LAYER}']")
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        trace.sources = [node.meta["grapharg"].source for node in placeholders]
        options = dict(torch._inductor.list_mode_options(mode)) if mode else {}
        options["triton.cudagraphs"] = False  # the graph around the layers is recorded, with them
        if not inductor_config.freezing:
            return compile_fx_module.compile_fx(graph, list(inputs), config_patches=options)
        trace.tape = WeightTape()
        held, kept = _hold_weights(graph, inputs, trace.tape)
        with trace.tape:
            compiled: Any = compile_fx_module.compile_fx(
                held, [inputs[position] for position in kept], config_patches=options | _FROZEN
            )
        trace.refusal = trace.tape.refusal
        if trace.refusal is not None:
            raise UnshareableLayerError(trace.refusal)
        return lambda *values: compiled(*[values[position] for position in kept])

    return compile_graph


def _hold_weights(
    graph: Any, inputs: Sequence[Any], tape: WeightTape
) -> tuple[torch.fx.GraphModule, list[int]]:
    """Return *graph* with the layer's tensors as attributes, and the positions of other inputs."""
    held = torch.fx.Graph()
    kept: list[int] = []
    attributes = {
        node.target: operator.attrgetter(node.target)(graph)
        for node in graph.graph.nodes
        if node.op in {"get_attr", "call_module"}
    }
    nodes: dict[Any, Any] = {}  # of the copied graph, by those of the original
    sources = dict(graph._param_name_to_source)
    for position, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        source, tensor = node.meta["grapharg"].source, inputs[position]
        is_weight = source.name.startswith((f"L['{LAYER}']", "G["))
        if not is_weight or type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            kept.append(position)
            continue
        tape.add_weight(tensor, source.name)
        name = f"weight_{position}"
        attributes[name] = tensor if isinstance(tensor, nn.Parameter) else nn.Buffer(tensor)
        sources[name] = source
        nodes[node] = held.get_attr(name)
        nodes[node].meta.update(node.meta)
    held.output(held.graph_copy(graph.graph, nodes))
    for node in graph.graph.find_nodes(op="placeholder"):
        if nodes[node].op == "placeholder":
            nodes[node]._dynamo_source = node._dynamo_source
    module = torch.fx.GraphModule(attributes, held)
    module.meta.update(graph.meta)
    module._param_name_to_source = sources  # type: ignore[assignment]  # AOTAutograd asks for it
    return module, kept


def _refusal(graph: Any) -> str | None:
    """Return why the traced *graph* needs more than its kernels; None if it needs nothing else."""
    examples = [
        (node, node.meta.get("example_value"))
        for node in graph.graph.nodes
        if node.op == "placeholder"
    ]
    if torch.is_grad_enabled() and any(
        isinstance(example, torch.Tensor) and example.requires_grad for _, example in examples
    ):
        return "computes gradients: call the model under torch.no_grad()"
    effects = InstructionTranslator.current_tx().output.side_effects
    for changed in effects._get_modified_vars():
        if changed.source is not None and type(changed.mutation_type).__name__ not in _MADE_HERE:
            return f"changes {readable(changed.source.name)} in its forward"
    for node, example in examples:
        place = readable(node.meta["grapharg"].source.name)
        if not isinstance(example, torch.Tensor | torch.SymInt):
            return f"has the input {place}, no tensor"
        if isinstance(example, torch.Tensor) and _is_written(example):
            return f"writes into {place}"
    return None


def _is_written(example: torch.Tensor) -> bool:
    """Return whether the trace wrote into *example*, the fake tensor of an input."""
    return not example.is_inference() and bool(example._version)


class recording:  # noqa: N801  a context manager
    """Keeps the graph of inductor that this thread runs first, with its inputs and outputs.

    Weights are inputs of dynamo's graph, even where inductor freezes them: dynamo would guard each
    frozen tensor by identity, and such guards hold for no other layer. What
    `compile_fx` calls back with is not enough: it calls nothing for a graph that AOTAutograd has in
    its cache.
    """

    def __init__(self, trace: LayerTrace) -> None:
        self._trace, self._thread, self._patches = trace, threading.get_ident(), Patches()

    def __enter__(self) -> None:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(graph: Any, inputs: Any) -> Any:
                trace = self._trace
                if threading.get_ident() != self._thread or trace.graph is not None:
                    return original(graph, inputs)
                trace.graph, trace.inputs = graph, list(inputs)
                trace.outputs = original(graph, inputs)
                return trace.outputs

            return call

        def wrap_freezing(original: Callable[[], bool]) -> Callable[[], bool]:
            return lambda: threading.get_ident() != self._thread and original()

        self._patches.wrap(CompiledFxGraph, "__call__", wrap)
        self._patches.wrap(builder, "is_parameter_freezing", wrap_freezing)

    def __exit__(self, *_: object) -> None:
        self._patches.restore()
