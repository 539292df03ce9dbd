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
from functools import partial
from types import CellType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from warmup.inductor.layers.place import MissingPlaceError

GLOBAL: Final = "G["  # how dynamo's expressions for globals begin
_MISSING: Final = object()
_ITEMS: Final = (list, set, deque)
_CELL_PARTS: Final = ("cell_contents",)
_HOOK_DICTS: Final = frozenset(name for name in vars(nn.Module()) if "hooks" in name)
_CALLS_AROUND: Final = re.compile(r"(?:\w[\w.]*\()+")  # at the beginning of an expression


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
        """Forget each value without items, such as a number, a tensor or a function.

        Hooks of modules are watched as such. A place that is missing, of which torch 2.11 notes
        that it was looked for, is forgotten too: what would get it is watched.
        """
        for texts in (self.of_layer, self.of_globals):
            for text in [text for text, parts in texts.items() if not parts]:
                is_hooks = text.rpartition(".")[2] in _HOOK_DICTS
                if is_hooks or not _has_items(value_of, text):
                    del texts[text]


def _has_items(value_of: Callable[[str], Any], text: str) -> bool:
    try:
        return isinstance(value_of(text), (*_ITEMS, dict))
    except MissingPlaceError:
        return False


def _root_of(text: str) -> str:
    """Return what an expression begins with, inside of calls such as ``type(...)``."""
    inner = text[found.end() :] if (found := _CALLS_AROUND.match(text)) else text
    return GLOBAL if inner.startswith(GLOBAL) else inner.partition("]")[0] + "]"


class KeptValues:
    """Values that were read of objects without a version, as they were when this was made."""

    def __init__(self, objects: Iterable[tuple[Any, Mapping[Any, None]]]) -> None:
        self._items: list[tuple[Iterable[Any], list[Any]]] = []
        self._parts: list[tuple[Callable[[Any, Any], Any], Any]] = []
        for whole, parts in objects:
            if isinstance(whole, _ITEMS) or (isinstance(whole, dict) and not parts):
                self._items.append((whole, [*whole]))  # guards may be about the number of items
            elif (get := _getter_of(whole)) is not None:
                names = _CELL_PARTS if isinstance(whole, CellType) else parts
                self._parts += [(get, name) for name in names]
        self._values = self._read()

    def is_same(self) -> bool:
        """Whether every value is the same object as before."""
        return all(map(operator.is_, self._read(), self._values)) and all(
            len(now := [*items]) == len(before) and all(map(operator.is_, now, before))
            for items, before in self._items
        )

    def _read(self) -> list[Any]:
        return [get(name, _MISSING) for get, name in self._parts]


def _getter_of(whole: Any) -> Callable[[Any, Any], Any] | None:
    """Return the function of a name and a default that reads a part of *whole*, if any can."""
    if isinstance(whole, CellType) or _has_slots(whole):
        return partial(getattr, whole)
    if isinstance(whole, (type, ModuleType)):
        return vars(whole).get
    own = versioned_dict_of(whole)
    return None if own is None else own.get


def _has_slots(whole: Any) -> bool:
    """Whether attributes of *whole* can be set although it has no dict."""
    if isinstance(whole, (tuple, torch.Tensor)) or hasattr(whole, "__dict__"):
        return False
    return any("__slots__" in vars(each) for each in type(whole).__mro__)


def versioned_dict_of(whole: Any) -> dict[str, Any] | None:
    """Return the dict in which *whole* has its parts, None without such a dict."""
    own = whole if isinstance(whole, dict) else getattr(whole, "__dict__", None)
    return own if isinstance(own, dict) else None


class ReadObjects:
    """Objects that guards read, each once: their dicts, and those without a version."""

    def __init__(self) -> None:
        self.dicts: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, tuple[Any, dict[Any, None]]] = {}

    def add(self, whole: Any, parts: Mapping[Any, None], *, is_global: bool) -> None:
        """Note an object, and the names of its parts.

        Of globals the parts alone are watched: others may change in each call. Modules and tensors
        are watched as such.
        """
        if isinstance(whole, torch.Tensor) or (isinstance(whole, nn.Module) and not is_global):
            return
        own = None if is_global else versioned_dict_of(whole)
        if own is not None and not isinstance(whole, type | ModuleType):
            self.dicts[id(own)] = own
        else:
            self._parts.setdefault(id(whole), (whole, {}))[1].update(parts)

    def kept_values(self) -> KeptValues:
        """Return the values of now of the objects without a version."""
        return KeptValues(self._parts.values())
