"""`LayerTrace`: what dynamo and inductor show while they compile and first run one layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor.output_code import CompiledFxGraph

from warmup.inductor.layers.form import UnshareableLayerError
from warmup.inductor.layers.place import LAYER, readable
from warmup.inductor.layers.reads import Reads
from warmup.inductor.patches import Patches

_MADE_HERE: Final = ("AttributeMutationNew", "ValueMutationNew")


@dataclass(slots=True)
class LayerTrace:
    """What the compile and the first run of a layer showed."""

    sources: list[Any] = field(default_factory=list)  # of the inputs of dynamo's graph
    reads: Reads = field(default_factory=Reads)
    refusal: str | None = None
    graph: Any = None  # inductor's
    inputs: list[Any] | None = None
    outputs: Sequence[Any] = ()


def tracing_backend(trace: LayerTrace, mode: str | None) -> Callable[..., Any]:
    """Return the backend that compiles in *mode*, without CUDA graphs, and fills *trace*.

    It raises an `UnshareableLayerError`, which dynamo wraps, for a graph that needs more than its
    kernels.
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
        return compile_fx_module.compile_fx(graph, list(inputs), config_patches=options)

    return compile_graph


def _refusal(graph: Any) -> str | None:
    """Return why the traced *graph* needs more than its kernels; None if it needs nothing else."""
    if inductor_config.freezing:  # set around each compile by a table for a CPU
        return "has its weights frozen into its graph, as tables for a CPU do (freezing)"
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

    What `compile_fx` calls back with is not enough: it calls nothing for a graph that AOTAutograd
    has in its cache.
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

        self._patches.wrap(CompiledFxGraph, "__call__", wrap)

    def __exit__(self, *_: object) -> None:
        self._patches.restore()
