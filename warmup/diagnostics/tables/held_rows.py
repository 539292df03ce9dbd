"""`HeldRows`: rows of one device and runtime, from a table file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.error_text import remedy_for
from warmup.core.errors import SettingsError, TableError
from warmup.core.rows import Row
from warmup.core.runtime import Runtime
from warmup.table.store import read

_MOST_TABLES: Final = 10_000


@dataclass(frozen=True)
class HeldRows:
    """The rows of the place *name*; ``rows`` are by key."""

    name: str
    runtime: Runtime
    rows: Mapping[str, Row]


@dataclass(frozen=True, slots=True)
class UnreadTable:
    """A table that cannot be read, and why."""

    name: str
    problem: str


def hold(places: Iterable[str]) -> Iterator[HeldRows | UnreadTable]:
    """Yield the rows of each of *places*: a table or a folder of tables.

    Raises:
        SettingsError: a place is not there.
    """
    for place in places:
        path = Path(place)
        if path.is_dir():
            yield from _of_folder(path)
        elif path.exists():
            yield _of_table(path)
        else:
            raise SettingsError(f"--tables {place}: there is nothing", "name a table or a folder")


def _of_folder(folder: Path) -> Iterator[HeldRows | UnreadTable]:
    def refuse(error: OSError) -> None:
        advice = remedy_for(error, "make it readable")
        raise SettingsError(f"--tables {folder}: {error.strerror}", advice) from error

    found = (
        Path(where) / name
        for where, _, files in os.walk(folder, onerror=refuse)
        for name in files
        if name.endswith(".json") and not name.startswith(".")
    )
    paths = sorted(path for path, _ in zip(found, range(_MOST_TABLES + 1), strict=False))
    if len(paths) > _MOST_TABLES:
        raise SettingsError(f"--tables {folder}: more than {_MOST_TABLES} files", "name fewer")
    yield from map(_of_table, paths)


def _of_table(path: Path) -> HeldRows | UnreadTable:
    try:
        table = read(path)
    except TableError as error:
        return UnreadTable(str(path), str(error))
    return HeldRows(str(path), table.provenance.runtime, table.rows)
