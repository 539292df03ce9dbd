"""`call_first`: compiles the model of a build, and calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from warmup.core.errors import BuildError, MissError, WarmupError, warmup_error_in
from warmup.inductor.adapter import compile_model
from warmup.inductor.artifacts import count_graphs, range_error
from warmup.models.call_state import CallState
from warmup.models.loading import Inputs


def call_first(model: nn.Module, inputs: Inputs) -> tuple[Callable[..., Any], Any, int]:
    """Compile *model*, and call it with *inputs*.

    Returns what was compiled, the output, and how many graphs torch.compile made of the model.

    Raises:
        Exception: an error of the model or of a compiler.
    """
    before, compiled = count_graphs(), compile_model(model)
    output = compiled(*inputs.args, **inputs.kwargs)
    return compiled, output, count_graphs() - before


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
