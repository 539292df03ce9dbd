"""`Node`: a value of untrusted JSON, with checks whose errors have its JSON pointer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from warmup.core.errors import TableFormatError

MAX_STRING: Final = 4096
_T = TypeVar("_T")


class Node:
    """A JSON value with its path in the document, from which an error makes the JSON pointer.

    A large table has hundreds of thousands of values, hence a plain class with slots.
    """

    __slots__ = ("_name", "_parent", "path", "value")

    def __init__(
        self, value: object, path: str, parent: Node | None = None, name: str | int = ""
    ) -> None:
        self.value = value
        self.path = path
        self._parent = parent
        self._name = name

    @property
    def pointer(self) -> str:
        """The JSON pointer (RFC 6901) of this value; empty for the document."""
        if self._parent is None:
            return ""
        escaped = str(self._name).replace("~", "~0").replace("/", "~1")
        return f"{self._parent.pointer}/{escaped}"

    def fail(self, reason: str) -> NoReturn:
        """Raise a `TableFormatError` with the JSON pointer of this value."""
        raise TableFormatError(self.path, self.pointer or "/", reason)

    def items(self) -> Iterable[tuple[str, Node]]:
        """Return the members of this object."""
        if type(self.value) is not dict:
            self.fail(f"expected an object, found {_name_of(self.value)}")
        path = self.path
        return [(name, Node(value, path, self, name)) for name, value in self.value.items()]

    def elements(self, most: int) -> list[Node]:
        """Return the elements of this array, which has 1 to *most* elements."""
        return [Node(value, self.path, self, i) for i, value in enumerate(self._array(most))]

    def members(
        self, names: frozenset[str], *, optional: frozenset[str] = frozenset()
    ) -> dict[str, Node]:
        """Return the members of this object: all of *names*, any of *optional*, and no others."""
        members = dict(self.items())
        if members.keys() - optional != names:
            for name, node in members.items():
                if name not in names | optional:
                    node.fail("unknown field")
            missing = ", ".join(sorted(names - members.keys()))
            self.fail(f"missing: {missing}")
        return members

    def string(self, limit: int = MAX_STRING) -> str:
        """Return this value, a printable string of at most *limit* characters."""
        if type(self.value) is not str:
            self.fail(f"expected a string, found {_name_of(self.value)}")
        if len(self.value) > limit or not self.value.isprintable():
            self.fail(f"expected at most {limit} printable characters")
        return self.value

    def integer(self, low: int, high: int) -> int:
        """Return this value, an integer in the closed range *low* to *high*."""
        if type(self.value) is not int:
            self.fail(f"expected an integer, found {_name_of(self.value)}")
        if not low <= self.value <= high:
            self.fail(f"expected an integer from {low} to {high}")
        return self.value

    def integers(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Return the elements of this array, integers in the closed *ranges*, one for each.

        There may be fewer elements than ranges, but not none.
        """
        values = self._array(len(ranges))
        for i, (value, (low, high)) in enumerate(zip(values, ranges, strict=False)):
            if type(value) is not int or not low <= value <= high:
                Node(value, self.path, self, i).integer(low, high)
        return values

    def number(self, low: float, high: float) -> float:
        """Return this value, a finite number in the closed range *low* to *high*."""
        value = self.value
        if type(value) is not int and type(value) is not float:
            self.fail(f"expected a number, found {_name_of(value)}")
        assert isinstance(value, (int, float))
        if not math.isfinite(value) or not low <= value <= high:
            self.fail(f"expected a number from {low:g} to {high:g}")
        return float(value)

    def _array(self, most: int) -> list[Any]:
        """Return this value, an array of 1 to *most* elements."""
        if type(self.value) is not list or not 0 < len(self.value) <= most:
            self.fail(f"expected an array of 1 to {most} elements")
        return self.value

    def true(self) -> bool:
        """Return this value, which is true: a field that is false is not written."""
        if self.value is not True:
            self.fail("expected true; without the field it is false")
        return True

    def optional(self, read: Callable[[Node], _T]) -> _T | None:
        """Return None for null, else the result of *read* on this node."""
        return None if self.value is None else read(self)


def _name_of(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
