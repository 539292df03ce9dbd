"""`call_first`: compiles the model of a build, and calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from warmup.core.errors import BuildError, MissError, WarmupError, warmup_error_in
from warmup.inductor.adapter import compile_model
from warmup.inductor.artifacts import count_graphs, range_error
from warmup.models.call_state import CallState
from warmup.models.loading import Inputs

_RECOMPILED: Final = "'fail_on_recompile'"  # torch/_dynamo/eval_frame.py


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


def error_for(error: Exception, name: str, changed: Sequence[str] = ()) -> WarmupError:
    """Return the error to raise for an *error* of a compile of the bucket *name*.

    A `WarmupError` in it is that error, but for a miss. *changed* are the attributes of the model
    that its calls change: each value has a graph of its own.
    """
    own = warmup_error_in(error)
    if own is not None and not isinstance(own, MissError):
        return own
    if (narrower := range_error(error, name)) is not None:
        return narrower
    again = own is not None or _RECOMPILED in str(error)
    if again and changed:
        return BuildError(
            f"bucket {name}: each call of the model changes its {', '.join(changed)}, and "
            "torch.compile compiles it again for each value, so that no row stays right",
            "keep what changes in a buffer or an input, not in an attribute",
        )
    if own is not None:
        return BuildError(
            f"bucket {name}: the model asks for other kernels each time that it is compiled "
            f"(such as {own.key})",
            "have forward compute the same in each call",
        )
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return BuildError(f"bucket {name}: compiling failed ({reason})")
