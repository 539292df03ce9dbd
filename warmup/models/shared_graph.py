"""`SharedGraph`: a model compiled with one artifact for equal layers, and a graph around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warmup.core.frozen_heap import frozen_heap
from warmup.core.layers_form import LayersForm, compiling
from warmup.inductor.artifacts import graph_break_reason, with_own_code
from warmup.inductor.layers.joined_calls import compile_around
from warmup.inductor.layers.opaque_call import (
    LayerProgram,
    OtherLayoutError,
    run_program,
    tracing_program,
)
from warmup.models.layer_proof import LayerProof
from warmup.models.other_sizes import OtherSizes
from warmup.models.proved_layers import NotSharedError, ProvedLayers
from warmup.models.shadow import Shadow, shadow_of


@dataclass(frozen=True, slots=True)
class SharedGraph:
    """The compiled graph around the layers, and what its opaque calls run (`run_program`).

    The code object of ``entry`` owns what dynamo has compiled.
    """

    entry: Callable[..., Any]
    compiled: Callable[..., Any]
    program: LayerProgram


@dataclass(frozen=True, slots=True)
class FirstCall:
    """What came of compiling a model in this way: its graph, its proof, and the call's result."""

    graph: SharedGraph
    proved: ProvedLayers
    shadow: Shadow
    result: Any


def compile_shared(
    proof: LayerProof, args: tuple[Any, ...], kwargs: Mapping[str, Any], other: OtherSizes | None
) -> FirstCall:
    """Prove the layers equal, compile the graph around them, and call it with these arguments.

    *other* is that of `LayerProof.prove`. What is asked of a table meanwhile is asked in the form
    `LayersForm.ONCE`.

    Raises:
        NotSharedError: the layers cannot share artifacts.
        Exception: an error of the model or of a compiler.
    """
    with compiling(LayersForm.ONCE), frozen_heap():
        proved = proof.prove(args, kwargs, other)
        shadow = shadow_of(proof.model, proved.forwards)
        entry = with_own_code(shadow.model, f"{proof.name}_around")
        compiled = compile_around(entry, proof.mode)
        try:
            with tracing_program(proved.program):
                result = run_program(proved.program, compiled, args, kwargs)
        except Exception as error:
            if (layout := other_layout(error)) is not None:
                raise NotSharedError(str(layout)) from error
            if (place := graph_break_reason(error)) is not None:
                raise NotSharedError(f"the graph around the layers breaks: {place}") from error
            raise
    return FirstCall(SharedGraph(entry, compiled, proved.program), proved, shadow, result)


def other_layout(error: BaseException | None) -> OtherLayoutError | None:
    """Return the `OtherLayoutError` among the causes of *error*, if any."""
    while error is not None:
        if isinstance(error, OtherLayoutError):
            return error
        error = error.__cause__ or error.__context__
    return None
