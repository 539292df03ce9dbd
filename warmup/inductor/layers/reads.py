"""`Reads`: what guards read of a layer and of modules' globals, and whether it is still the same.

A dict has a version, which `warmup.inductor.layers.module_watch` compares. Lists, sets, cells of
closures, objects with slots, attributes of classes and globals have none: of these the values that
guards read are kept and compared by identity.
"""

from __future__ import annotations

import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import CellType, ModuleType
from typing import Any, Final

import torch
from torch import nn

GLOBAL: Final = "G["  # how dynamo's expressions for globals begin
_MISSING: Final = object()
_ITEMS: Final = (list, set, deque)
_CELL: Final = ("cell_contents",)
_CALLS: Final = re.compile(r"(?:\w[\w.]*\()+")  # at the beginning of an expression


class Reads:
    """Places that guards read: names of the parts that were read, by the expression of the whole.

    ``of_layer`` are reached from the layer, ``of_globals`` from the globals of a module.
    """

    def __init__(self) -> None:
        self.of_layer: dict[str, dict[Any, None]] = {}
        self.of_globals: dict[str, dict[Any, None]] = {}

    def add(self, source: Any, layer: str) -> None:
        """Note dynamo's *source*, and all that it is a part of, where it is reached from *layer*.

        Other arguments of the call are no part of what can change behind it.
        """
        parts: dict[Any, None] = {}
        while source is not None:
            text = source.name
            if (root := _root_of(text)) == GLOBAL:
                self.of_globals.setdefault(text, {}).update(parts)
            elif root == layer:
                self.of_layer.setdefault(text, {}).update(parts)
            parts = {getattr(source, "member", getattr(source, "index", None)): None}
            source = getattr(source, "base", None)
            if type(source).__name__ == "TypeDictSource":
                source = source.base  # the dict is a copy

    def keep_containers(self, value_of: Callable[[str], Any]) -> None:
        """Forget what was read as a whole and has no items, as a number, a tensor or a function."""
        for texts in (self.of_layer, self.of_globals):
            for text in [text for text, parts in texts.items() if not parts]:
                if not isinstance(value_of(text), (*_ITEMS, dict)):
                    del texts[text]


def _root_of(text: str) -> str:
    """Return what an expression begins with, inside of calls such as ``type(...)``."""
    inner = text[found.end() :] if (found := _CALLS.match(text)) else text
    return GLOBAL if inner.startswith(GLOBAL) else inner.partition("]")[0] + "]"


@dataclass(frozen=True, slots=True)
class KeptValues:
    """Values that were read of an object without a version; ``read`` reads them again."""

    read: Callable[[], Iterable[Any]]
    before: tuple[Any, ...]

    @classmethod
    def of(cls, whole: Any, parts: Mapping[Any, None]) -> KeptValues | None:
        """Return the values at *parts* of *whole*; None for what cannot change.

        All items of a list or a set are kept, since guards may be about their number.
        """
        read: Callable[[], Iterable[Any]]
        if isinstance(whole, _ITEMS):
            read = partial(iter, whole)
        elif (get := _getter_of(whole)) is not None:
            names = _CELL if isinstance(whole, CellType) else tuple(parts)
            read = partial(map, get, names, repeat(_MISSING))
        else:
            return None
        return cls(read, tuple(read()))

    def is_same(self) -> bool:
        """Whether every value is the same object as before."""
        now = [*self.read()]
        return len(now) == len(self.before) and all(map(operator.is_, now, self.before))


def _getter_of(whole: Any) -> Callable[[Any, Any], Any] | None:
    """Return the function of a name and a default that reads a part of *whole*, if any can."""
    if isinstance(whole, CellType) or _has_slots(whole):
        return partial(getattr, whole)
    if isinstance(whole, (type, ModuleType)):
        return vars(whole).get
    own = whole if type(whole) is dict else getattr(whole, "__dict__", None)
    return own.get if type(own) is dict else None


def _has_slots(whole: Any) -> bool:
    """Whether attributes of *whole* can be set although it has no dict."""
    if isinstance(whole, (tuple, torch.Tensor)) or hasattr(whole, "__dict__"):
        return False
    return any("__slots__" in vars(each) for each in type(whole).__mro__)


def versioned_dict_of(whole: Any) -> dict[str, Any] | None:
    """Return the dict in which *whole* has its parts; None for a module, or without such a dict."""
    if isinstance(whole, (nn.Module, torch.Tensor, type, ModuleType)):
        return None
    own = whole if type(whole) is dict else getattr(whole, "__dict__", None)
    return own if type(own) is dict else None


class ReadObjects:
    """Objects that guards read, each once: their dicts, and the values of those without one."""

    def __init__(self) -> None:
        self.dicts: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, tuple[Any, dict[Any, None]]] = {}

    def add(self, whole: Any, parts: Mapping[Any, None], *, is_global: bool) -> None:
        """Note an object, and the names of its parts.

        Of globals the parts alone are watched: others may change in each call.
        """
        own = None if is_global else versioned_dict_of(whole)
        if own is not None:
            self.dicts[id(own)] = own
        elif is_global or not isinstance(whole, nn.Module):
            self._parts.setdefault(id(whole), (whole, {}))[1].update(parts)

    def kept_values(self) -> list[KeptValues]:
        """Return the values of now of the objects without a version."""
        found = (KeptValues.of(*each) for each in self._parts.values())
        return [each for each in found if each is not None]
