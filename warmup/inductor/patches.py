"""`Patches`: replaces attributes of torch's modules and classes, and restores them.

Class attributes affect every thread, even threads that compiled before. Inductor's choices handler
and, from torch 2.12 on, its config overrides are per thread.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from warmup.inductor.firewall import Firewall

_changing = threading.Lock()  # another table may be installed while a compile ends
# What is put back where a replacement should go that somebody has wrapped: owner, name, the
# replacement, and what it replaced.
_buried: list[tuple[Any, str, Any, Any]] = []


class Patches:
    """A stack of replaced attributes; `restore` puts them back, last first.

    With a *firewall* no exception of a replacement reaches the function's caller: hooks in a
    user's compile have one. Without it a replacement may raise, as those of a tool that compiles.
    """

    def __init__(self, firewall: Firewall | None = None) -> None:
        self.firewall = firewall
        self._undo: list[Callable[[], None]] = []
        self._deactivate: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._users = 0
        self._is_restored = False

    def wrap(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        plain: Callable[[Any], Any] | None = None,
    ) -> None:
        """Replace attribute *name* of *owner* by ``make(original)``; classmethods stay so.

        Where the replacement raises, ``plain(original)`` is called in its place, by default the
        original itself.
        """

        def replaced(function: Any) -> Any:
            if self.firewall is None or not callable(function):
                return _named_as(function, make(function))
            place = f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
            return _named_as(function, self.firewall.guard(place, function, make, plain))

        with _changing:
            raw = vars(owner)[name]
            if isinstance(raw, (classmethod, staticmethod)):
                replacement: Any = type(raw)(replaced(raw.__func__))
            else:
                replacement = replaced(raw)
            setattr(owner, name, replacement)

        def undo() -> None:
            # If other code wrapped the attribute later, its wrapper stays, and ours is inactive
            # below it. A later table's wrapper goes one day, and then ours goes too.
            with _changing:
                _buried.append((owner, name, replacement, raw))
                _dig_out()

        self._undo.append(undo)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call *undo* on `restore`, before attributes are put back."""
        self._deactivate.append(undo)

    def keep_during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return *function*, during whose calls no attribute is put back.

        A compile under way may hold what only a replacement understands, such as a deferred list of
        candidates. The replacements are inactive by then; the last such call puts all back.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._users += 1
            try:
                return function(*args, **kwargs)
            finally:
                with self._lock:
                    self._users -= 1
                self._put_back()

        return call

    def restore(self) -> None:
        """Deactivate all replacements, and put every attribute back; restoring twice is fine."""
        while self._deactivate:
            self._deactivate.pop()()
        self._is_restored = True
        self._put_back()

    def _put_back(self) -> None:
        with self._lock:
            if self._is_restored and not self._users:
                while self._undo:
                    self._undo.pop()()


class Hooks:
    """Hooks that are ``_active`` until `Patches` calls `_deactivate`, given to `on_restore`."""

    _active = True

    def _deactivate(self) -> None:
        self._active = False


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls *function* without its wrappers, such as hooks and caches."""
    return functools.partial(inspect.unwrap(function))


def _dig_out() -> None:
    """Put back every buried attribute that is no longer wrapped."""
    while bare := [each for each in _buried if vars(each[0]).get(each[1]) is each[2]]:
        for owner, name, _, raw in bare:
            setattr(owner, name, raw)
        _buried[:] = [each for each in _buried if each not in bare]


def _named_as(original: Any, replacement: Any) -> Any:
    """Return *replacement* with the name and signature of *original*, if both are functions."""
    if callable(original) and callable(replacement):
        functools.update_wrapper(replacement, original)
    return replacement
