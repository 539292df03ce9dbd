"""`CompileWatch`: reports when inductor begins and ends to compile a graph, in any thread.

Also whether compiles began before anything was attached: such graphs never ask a table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch._dynamo import convert_frame
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config

from warmup.inductor.patches import Patches

# Calls that inductor makes a packed linear of, where it may take the weight for a constant.
_LINEARS: Final = frozenset({"addmm", "linear", "matmul", "mm"})


class CompileObserver(Protocol):
    """Receiver of what `CompileWatch` sees, in the thread that compiles."""

    def compile_started(self) -> None:
        """Inductor begins to compile a graph, or to load it from its caches."""

    def compile_ended(self) -> None:
        """That compile has ended, perhaps with an error."""

    def left_unfrozen(self) -> None:
        """A graph with a linear was compiled with gradients on although its options freeze weights.

        Torch freezes no weights then (compile_fx.py), and inductor asks nothing about the linear.
        """


class CompileWatch:
    """Reports every outermost call of ``compile_fx`` to *observer*."""

    def __init__(self, observer: CompileObserver) -> None:
        self._observer = observer
        self._active = True
        self._inside = threading.local()

    def attach(self, patches: Patches) -> None:
        """Report until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(compile_fx_module, "compile_fx", self._wrap)

    def _deactivate(self) -> None:
        self._active = False

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_and_report(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active or getattr(self._inside, "value", False):
                return original(model, inputs, *args, **kwargs)
            self._inside.value = True
            self._observer.compile_started()
            try:
                is_unfrozen = torch.is_grad_enabled() and _would_freeze(model, inputs)
                compiled = original(model, inputs, *args, **kwargs)
                if is_unfrozen:
                    self._observer.left_unfrozen()
                return compiled
            finally:
                self._inside.value = False
                self._observer.compile_ended()

        return compile_and_report


def _would_freeze(model: Any, inputs: Any) -> bool:
    """Return whether *model* is a graph with a linear whose weight would be frozen."""
    if not inductor_config.freezing or not isinstance(model, torch.fx.GraphModule):
        return False
    if not any(isinstance(each, nn.Parameter) for each in inputs):
        return False
    names = (getattr(node.target, "__name__", str(node.target)) for node in model.graph.nodes)
    return any(name.partition(".")[0] in _LINEARS for name in names)


_known_before = 0


def count_earlier_compiles() -> int:
    """Return how many functions dynamo has compiled in this process without a table."""
    return max(0, len(convert_frame.output_codes.seen_ids) - _known_before)


def forget_earlier_compiles() -> None:
    """Leave the functions that are compiled by now out of `count_earlier_compiles`."""
    global _known_before  # noqa: PLW0603  dynamo's list is global too
    _known_before = len(convert_frame.output_codes.seen_ids)


def is_compiling_elsewhere() -> bool:
    """Return whether another thread compiles at this moment."""
    if not convert_frame.compile_lock.acquire(blocking=False):
        return True
    convert_frame.compile_lock.release()
    return False
