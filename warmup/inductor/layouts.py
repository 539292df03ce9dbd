"""`expect_padding` and `fixed_layouts`: predict layouts that inductor has not fixed yet.

Inductor fixes flexible layouts after all nodes are lowered, and pads long rows then (ir.py,
Layout._pad_strides). A node that produces a graph output forbids padding, and while such a node is
lowered, inductor predicts layouts of its operands without padding (2.11 to 2.15). The last GEMM of
a model would therefore be described, generated and measured with strides that do not occur.

A template asks for a layout twice: for its strides, and where it writes a load into the source.
Kernels generated for measuring use that source; the kernel that is served is generated again when
all layouts are fixed.
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
    """Let inductor predict layouts as it will fix them, until *patches* is restored."""
    patches.wrap(FlexibleLayout, "get_fixed_layout_without_freezing", _without_current_node)
    patches.wrap(TritonTemplateKernel, "load_input", _without_current_node)


def _without_current_node(original: Callable[..., Any]) -> Callable[..., Any]:
    def predict(*args: Any, **kwargs: Any) -> Any:
        with V.set_current_node(None):
            return original(*args, **kwargs)

    return predict


@contextlib.contextmanager
def fixed_layouts(operands: Iterable[Any]) -> Iterator[None]:
    """Give *operands* with a flexible layout their predicted fixed layout while open.

    Otherwise inductor takes the strides of example operands from the flexible layout (2.11).
    """
    with contextlib.ExitStack() as restores:
        for operand in operands:
            buffer = operand
            while isinstance(buffer, MutableBox):
                buffer = buffer.data
            layout = getattr(buffer, "layout", None)
            if isinstance(layout, FlexibleLayout):
                restores.callback(setattr, buffer, "layout", layout)
                buffer.layout = layout.get_fixed_layout_without_freezing()
        yield
