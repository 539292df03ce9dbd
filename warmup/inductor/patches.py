"""`Patches`: replaces attributes of torch's modules and classes, and restores them.

Class attributes affect every thread, even threads that compiled before. Inductor's choices handler
and, from torch 2.12 on, its config overrides are per thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """A stack of replaced attributes; `restore` puts them back, last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace attribute *name* of *owner* by ``make(original)``; classmethods stay so."""
        raw = vars(owner)[name]
        if isinstance(raw, (classmethod, staticmethod)):
            replacement: Any = type(raw)(_named_as(raw.__func__, make(raw.__func__)))
        else:
            replacement = _named_as(raw, make(raw))
        setattr(owner, name, replacement)

        def undo() -> None:
            # If other code wrapped the attribute later, its wrapper stays, and ours is inactive.
            if vars(owner).get(name) is replacement:
                setattr(owner, name, raw)

        self._undo.append(undo)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call *undo* on `restore`."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put every replaced attribute back; restoring twice is fine."""
        while self._undo:
            self._undo.pop()()


def _named_as(original: Any, replacement: Any) -> Any:
    """Return *replacement* with the name and signature of *original*, if both are functions."""
    if callable(original) and callable(replacement):
        functools.update_wrapper(replacement, original)
    return replacement
