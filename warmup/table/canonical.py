"""`compact` and `spell`: JSON values as text, in the two forms that tables need.

Both have sorted names and ASCII letters. The rows of a table have the same few sets of names, for
which the text around the values is made once: Python's own indented form takes ten times as long.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, Final

_INDENT: Final = "  "


# Return a value as JSON without whitespace.
compact: Final[Callable[[object], str]] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), check_circular=False
).encode


def spell(value: Any, depth: int = 0) -> tuple[str, str]:
    """Return *value* as JSON without whitespace, and with an indent of two spaces per level.

    *depth* is the number of levels around *value*.
    """
    kind = type(value)
    if not value or kind not in {dict, list}:
        text = compact(value)
        return text, text
    if kind is list:
        line = "\n" + _INDENT * (depth + 1)
        elements = f",{line}".join(spell(element, depth + 1)[1] for element in value)
        return compact(value), f"[{line}{elements}\n{_INDENT * depth}]"
    names, short_form, long_form = _layout(tuple(value), depth)
    values = [value[name] for name in names]
    # Any other type is a subclass of these, such as the version of torch.
    short = [_SPELLINGS.get(type(part), compact)(part) for part in values]
    long = short.copy()
    for place, part in enumerate(values):
        if part and type(part) in {dict, list}:
            long[place] = spell(part, depth + 1)[1]
    return short_form % tuple(short), long_form % tuple(long)


@functools.lru_cache(maxsize=256)
def _layout(names: tuple[str, ...], depth: int) -> tuple[tuple[str, ...], str, str]:
    """Return *names* in order, and format strings for the values of an object with these names."""
    names = tuple(sorted(names))
    if not names:
        return names, "{}", "{}"
    quoted = [_quoted(name).replace("%", "%%") for name in names]
    line = "\n" + _INDENT * (depth + 1)
    long = f",{line}".join(f"{name}: %s" for name in quoted)
    short = ",".join(f"{name}:%s" for name in quoted)
    return names, f"{{{short}}}", f"{{{line}{long}\n{_INDENT * depth}}}"


_SPELLINGS: Final[Mapping[type, Callable[[Any], str]]] = {
    dict: compact,
    list: compact,
    str: _quoted,
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: lambda value: repr(value) if math.isfinite(value) else compact(value),
    type(None): lambda _: "null",
}
