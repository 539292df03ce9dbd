"""Layouts that are still open when a GEMM is lowered, as they will be.

Inductor settles them when all nodes are lowered, and pads long rows then (ir.py,
Layout._pad_strides). A node that makes an output of the graph forbids padding, and whoever asks
while it is lowered how an operand of it *will* lie is told: without padding (2.11 to 2.15). So the
last product of a model was described, generated and measured for rows that do not occur.

A template asks twice: for the strides that it states, and where it writes out a load. Kernels that
are generated to be measured load from there; one that is served is written out again when all is
settled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch._inductor.ir import FlexibleLayout, MutableBox
from torch._inductor.select_algorithm import TritonTemplateKernel
from torch._inductor.virtualized import V

from warmup.inductor.patches import Patches


def expect_padding(patches: Patches) -> None:
    """Let inductor foretell layouts as it settles them, until *patches* is restored."""
    patches.wrap(FlexibleLayout, "get_fixed_layout_without_freezing", _outside_of_nodes)
    patches.wrap(TritonTemplateKernel, "load_input", _outside_of_nodes)


def _outside_of_nodes(original: Callable[..., Any]) -> Callable[..., Any]:
    def foretell(*args: Any, **kwargs: Any) -> Any:
        with V.set_current_node(None):
            return original(*args, **kwargs)

    return foretell


@contextlib.contextmanager
def settled(operands: Iterable[Any]) -> Iterator[None]:
    """Let *operands* whose layout is open have the one that it will be, until the exit.

    Inductor takes strides of example operands from the open layout (2.11), not from that.
    """
    with contextlib.ExitStack() as changed:
        for operand in operands:
            buffer = operand
            while isinstance(buffer, MutableBox):
                buffer = buffer.data
            layout = getattr(buffer, "layout", None)
            if isinstance(layout, FlexibleLayout):
                changed.callback(setattr, buffer, "layout", layout)
                buffer.layout = layout.get_fixed_layout_without_freezing()
        yield
