"""`call_first`: compiles the model of a build in the form in which it is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from warmup.core.errors import BuildError, LayersError, MissError, WarmupError, warmup_error_in
from warmup.core.layers_form import LayersForm
from warmup.inductor.adapter import compile_model
from warmup.inductor.artifacts import count_graphs, range_error
from warmup.inductor.layers.opaque_call import run_program
from warmup.models.call_state import CallState
from warmup.models.layer_proof import LayerProof
from warmup.models.loading import Inputs
from warmup.models.other_sizes import OtherSizes
from warmup.models.proved_layers import NotSharedError
from warmup.models.repeated_groups import find_groups
from warmup.models.shared_graph import compile_shared

_CODE_NAME: Final = "warmup_build"  # in the names of code objects


def call_first(
    model: nn.Module, form: LayersForm, calls: Sequence[Inputs]
) -> tuple[Callable[..., Any], Any, int]:
    """Compile *model* in *form*, and call it with the first of *calls*.

    Returns what was compiled, the output, and how many graphs torch.compile made of the model. A
    graph around layers, together with theirs, counts as one. Where the bucket of the first call has
    a range, the second of *calls* is at its lower end.

    Raises:
        LayersError: the layers are to be compiled once, and cannot be.
        Exception: an error of the model or of a compiler.
    """
    first = calls[0]
    if form is LayersForm.WHOLE:
        before, compiled = count_graphs(), compile_model(model)
        output = compiled(*first.args, **first.kwargs)
        return compiled, output, count_graphs() - before
    groups = find_groups(model)
    if not groups:
        raise LayersError("the model has no repeated layers")
    proof = LayerProof(model, groups, mode=None, tolerance=None, name=_CODE_NAME)
    try:
        done = compile_shared(proof, first.args, first.kwargs, _other_sizes(calls))
    except NotSharedError as error:
        raise LayersError(str(error)) from error
    graph = done.graph

    def call(*args: Any, **kwargs: Any) -> Any:
        return run_program(graph.program, graph.compiled, args, kwargs)

    return call, done.result, 1


def call_others(
    compiled: Callable[..., Any], calls: Sequence[Inputs], state: CallState
) -> list[Any]:
    """Return the outputs of *compiled* for *calls*, which its artifact must serve.

    What calls write is put back by *state* before each.

    Raises:
        Exception: another artifact would be needed, or the model failed.
    """
    with torch.compiler.set_stance("fail_on_recompile"):
        outputs = []
        for call in calls:
            state.restore()
            outputs.append(state.detached(compiled(*call.args, **call.kwargs)))
        return outputs


def error_for(error: Exception, name: str) -> WarmupError:
    """Return the error to raise for an *error* of a compile: a `WarmupError` in it but a miss."""
    own = warmup_error_in(error)
    if own is not None and not isinstance(own, MissError):
        return own
    if (narrower := range_error(error, name)) is not None:
        return narrower
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return BuildError(f"bucket {name}: compiling failed ({reason})")


def _other_sizes(calls: Sequence[Inputs]) -> OtherSizes | None:
    """Return the second of *calls* where the bucket of the first has a range, else None."""
    bucket = calls[0].bucket
    if bucket is None or not bucket.lows:
        return None
    low = calls[1]
    size_of = dict(bucket.sizes)
    ranges = {
        name: (size_of[name], smallest, smallest, size_of[name])
        for name, smallest in bucket.lows
        if smallest < size_of[name]
    }
    return OtherSizes(low.args, low.kwargs, ranges) if ranges else None
