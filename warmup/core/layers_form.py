"""`LayersForm`: how repeated layers are compiled; the form and bucket that this thread compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
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


_GRAPHS: Final[Mapping[LayersForm, str]] = {
    LayersForm.AUTO: "whole graphs and layers compiled once",
    LayersForm.ONCE: "layers compiled once",
    LayersForm.WHOLE: "whole graphs",
}
# The forms that a graph may have, in the order in which they are named.
BUILT_FORMS: Final = (LayersForm.ONCE, LayersForm.WHOLE)
_ONE_OBJECT: Final = {
    frozenset(forms): forms for forms in (*((form,) for form in BUILT_FORMS), BUILT_FORMS, ())
}
_current: ContextVar[LayersForm] = ContextVar("layers_form", default=LayersForm.WHOLE)
_bucket: ContextVar[str | None] = ContextVar("bucket", default=None)


def in_order(forms: Iterable[LayersForm]) -> tuple[LayersForm, ...]:
    """Return *forms* of graphs, each once, in their order; equal results are one object."""
    return _ONE_OBJECT[frozenset(forms)]


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


@contextlib.contextmanager
def compiling_bucket(name: str) -> Iterator[None]:
    """Let `current_bucket` return *name* in this thread while the context is open."""
    token = _bucket.set(name)
    try:
        yield
    finally:
        _bucket.reset(token)


def current_bucket() -> str | None:
    """Return the bucket that this thread compiles; None outside of `compiling_bucket`."""
    return _bucket.get()
