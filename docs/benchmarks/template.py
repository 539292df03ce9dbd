"""Fills the template of the benchmark page from result documents.

In the template, `<!-- results: PATTERN ... -->` says which documents the text below it is about,
until the next such line: those whose names match, ``*`` as in a shell. The text is left out while
there are none. Below `<!-- each: PATTERN ... -->` it is filled once for each pattern.

A field in braces is a path as of `str.format`, such as ``{speedup[value]:.2f}``, into the first
document that has it. Else a function of that name computes the field from all of the documents, or
some of their names begin with it, and a field of these follows in brackets. A format may begin with
a unit to divide by, ``{peak_bytes:MiB .0f}``, or be a goal: ``{ratio:at most 1.3}`` gives the
ratio, and in the next cell of a table whether it is reached, as ``{count:all}`` does.

Below `<!-- rows: NAME -->` stands a table or a list whose last line is repeated for each row of the
field NAME, and filled from the row. A cell is empty where one of its fields is absent or null.
Without rows the table is left out.
"""

from __future__ import annotations

import json
import re
import statistics
import string
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Documents = Mapping[str, Any]  # by name
Row = dict[str, Any]
Functions = Mapping[str, Callable[[Documents], Any]]

_RESULTS = re.compile(r"^<!-- (results|each): (.+) -->\n", re.MULTILINE)
_ROWS = re.compile(r"^<!-- rows: (\w+) -->\n((?:.+\n)*?)(.+)\n(?=\n|\Z)", re.MULTILINE)
_UNITS = {"MiB": 2**20, "MB": 1e6, "ms": 1e3}


class AbsentError(LookupError):
    """A field is not there, or it is null."""


class Values(tuple[Any, ...]):
    """What several runs measured. As text it is the median, with the bounds where they differ.

    With the format ``d``, of counts, it is the count, or the bounds where runs differ.
    """

    __slots__ = ()

    @property
    def median(self) -> float:
        """The median of all runs."""
        return statistics.median(self)

    def __truediv__(self, unit: float) -> Values:
        return Values(value / unit for value in self)

    def __format__(self, spec: str) -> str:
        if spec == "d":
            return " to ".join(map(str, sorted({min(self), max(self)})))
        bounds = (self.median, min(self), max(self))
        middle, low, high = (format(value, spec) for value in bounds)
        return middle if low == high else f"{middle} ({low} to {high})"


class Part(dict[str, Any]):
    """The fields of the documents of one part of the page; ``result`` is the name of the first."""

    def __init__(self, documents: Documents, functions: Functions) -> None:
        super().__init__(ChainMap({"result": next(iter(documents))}, *documents.values()))
        self._documents, self._functions = documents, functions

    def __missing__(self, name: str) -> Any:
        if name in self._functions:
            try:
                return self._functions[name](self._documents)
            except (LookupError, TypeError) as error:  # which would read as an absent field
                raise RuntimeError(f"{name}: {error!r}") from error
        own = {key: self._documents[key] for key in self._documents if key.startswith(name)}
        return Part(own, self._functions) if own else None


class Count(NamedTuple):
    """How many of how many things are as they should be."""

    good: int
    total: int


class _Formatter(string.Formatter):
    _name = ""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        self._name = field_name
        try:
            return super().get_field(field_name, args, kwargs)
        except (LookupError, TypeError):  # a key, or a key of what is null
            return None, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        unit, _, spec = format_spec.rpartition(" ")
        if unit in {"at most", "at least"} or spec == "all":
            return _judged(value, unit, spec)
        if value is None:
            raise AbsentError(self._name)
        if isinstance(value, list):
            return ", ".join(format(item, spec) for item in value)
        return format(value / _UNITS[unit] if unit else value, spec)


def _judged(value: float | Count | None, sense: str, limit: str) -> str:
    """Return *value*, and in the next cell whether it is the goal; judged as it is printed."""
    if value is None:
        return "not measured | "
    if isinstance(value, Count):
        text, is_reached = f"{value.good} of {value.total}", value.good == value.total
    else:
        text = f"{round(value, 3):g}"
        is_reached = float(text) <= float(limit)
        if sense == "at least":
            is_reached = float(text) >= float(limit)
    return f"{text} | {verdict(is_reached)}"


def verdict(is_reached: bool) -> str:  # noqa: FBT001  the claim itself is what is put in words
    """Return the word for a goal that is reached, or is not."""
    return "reached" if is_reached else "missed"


def render(template: str, results: Path, functions: Functions) -> str:
    """Return the page; the documents are the JSON files in the folder *results*.

    Raises:
        AbsentError: a field outside of tables is absent or null.
    """
    head, *parts = _RESULTS.split(template)
    texts = [head]
    for what, patterns, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        groups = patterns.split() if what == "each" else [patterns]
        loaded = [load(results, *group.split()) for group in groups]
        texts += [_filled(text, Part(documents, functions)) for documents in loaded if documents]
    return re.sub(r"\n{3,}", "\n\n", "".join(texts)).strip() + "\n"


def load(results: Path, *patterns: str) -> dict[str, Any]:
    """Return the documents in *results* whose names match one of *patterns*, in this order."""
    paths = [path for pattern in patterns for path in sorted(results.glob(f"{pattern}.json"))]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def _filled(text: str, part: Part) -> str:
    pieces = _ROWS.split(text)
    texts = [fill(pieces[0], part)]
    for name, head, line, rest in zip(*(pieces[start::4] for start in range(1, 5)), strict=True):
        rows = [_line(line, row) for row in part[name]]
        texts += [head, "\n".join(rows), "\n"] if rows else []
        texts.append(fill(rest, part))
    return "".join(texts)


def fill(text: str, row: Row) -> str:
    """Return *text* with the fields of *row* in place of their names.

    Raises:
        AbsentError: a field is absent or null.
    """
    return _Formatter().vformat(text, (), row)


def _line(line: str, row: Row) -> str:
    if not line.startswith("| "):
        return fill(line, row)
    return f"| {' | '.join(_cell(cell, row) for cell in line[2:-2].split(' | '))} |"


def _cell(cell: str, row: Row) -> str:
    try:
        return fill(cell, row)
    except AbsentError:
        return ""


def each(documents: Documents, name: str) -> list[Any]:
    """Return the items of the lists *name* of all *documents*."""
    return [item for document in documents.values() for item in document[name]]


def grouped(rows: Iterable[Row], *names: str) -> list[dict[str, Any]]:
    """Return the rows that are equal in *names* as one row, in which other fields are `Values`.

    ``runs`` says how many rows that were; a field has the values of the rows that have it.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    merged = []
    for key, same in groups.items():
        fields = dict.fromkeys(name for row in same for name in row)
        values = {name: Values(row[name] for row in same if name in row) for name in fields}
        merged.append({**values, **dict(zip(names, key, strict=True)), "runs": len(same)})
    return merged


def over(value: float | None, base: float | None) -> float | None:
    """Return *value* over *base*; None where one of them was not measured."""
    return None if value is None or base is None else value / base
