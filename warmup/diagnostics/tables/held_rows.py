"""`HeldRows`: rows of one device and runtime, from a table file or from a group of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.error_text import remedy_for
from warmup.core.errors import SettingsError, TableError
from warmup.core.rows import Row
from warmup.core.runtime import Runtime
from warmup.table.row_store import RowStore
from warmup.table.row_store.group_files import GroupFiles
from warmup.table.row_store.row_store import MARKER
from warmup.table.row_store.store_view import StoreView
from warmup.table.store import read

_MOST_TABLES: Final = 10_000


@dataclass(frozen=True)
class HeldRows:
    """The rows of the place *name*; ``keys`` have a row, and ``rows_of`` returns all of a key."""

    name: str
    runtime: Runtime
    keys: frozenset[str]
    rows_of: Callable[[str], list[Row]]
    count: int


@dataclass(frozen=True, slots=True)
class UnreadTable:
    """A table or a file of a store that cannot be read, and why."""

    name: str
    problem: str


def hold(places: Iterable[str]) -> Iterator[HeldRows | UnreadTable]:
    """Yield the rows of each of *places*: a table, a folder of tables, or a store of rows.

    Raises:
        SettingsError: a place is not there, or a URL needs a package that is not installed.
        StoreError: a URL cannot be read, or is no store of rows.
    """
    for place in places:
        path = Path(place)
        if "://" in place or (path / MARKER).exists():
            yield from _of_store(RowStore(place))
        elif path.is_dir():
            yield from _of_folder(path)
        elif path.exists():
            yield _of_table(path)
        else:
            raise SettingsError(
                f"--tables {place}: there is nothing", "name a table, a folder, or a store of rows"
            )


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
    rows = table.rows
    return HeldRows(
        str(path),
        table.provenance.runtime,
        frozenset(rows),
        lambda key: [rows[key]] if key in rows else [],
        len(rows),
    )


def _of_store(store: RowStore) -> Iterator[HeldRows | UnreadTable]:
    store.check_there()
    for name, error in store.undescribed().items():
        yield UnreadTable(name, str(error))
    for group in store.groups():
        found = store.load(group)
        yield _of_group(store, found)
        for name, problem in found.damaged.items():
            yield UnreadTable(name, str(problem))


def _of_group(store: RowStore, found: GroupFiles) -> HeldRows:
    origin = found.group.origin
    view = StoreView(found.segments.values(), origin, {}, store.location)
    return HeldRows(
        f"group {found.group.name} of {store.location}",
        origin.provenance.runtime,
        frozenset(view.keys()),
        view.rows,
        sum(len(segment.lines) for segment in found.segments.values()),
    )
