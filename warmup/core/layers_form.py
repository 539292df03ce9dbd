"""`LayersForm`: how repeated layers are compiled, and in which form this thread compiles now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Final


class LayersForm(StrEnum):
    """How repeated layers are compiled: `warmup.compile` explains each.

    A graph, and a row, is of the form ``whole`` or ``once``; ``auto`` takes the one that fits.
    """

    AUTO = "auto"
    ONCE = "once"
    WHOLE = "whole"

    @property
    def graphs(self) -> str:
        """What is compiled in this form, for people."""
        return _GRAPHS[self]


Forms = tuple[LayersForm, ...]
_GRAPHS: Final[Mapping[LayersForm, str]] = {
    LayersForm.AUTO: "whole graphs and layers compiled once",
    LayersForm.ONCE: "layers compiled once",
    LayersForm.WHOLE: "whole graphs",
}
_current: ContextVar[LayersForm] = ContextVar("layers_form", default=LayersForm.WHOLE)


@contextlib.contextmanager
def compiling(form: LayersForm) -> Iterator[None]:
    """Let `current_form` return *form* in this thread while the context is open."""
    token = _current.set(form)
    try:
        yield
    finally:
        _current.reset(token)


def current_form() -> LayersForm:
    """Return the form of the graphs that this thread compiles; whole outside of `compiling`."""
    return _current.get()
