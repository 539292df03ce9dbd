"""`view_like`: a table made of rows of a store, for the same device and runtime as another one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warmup.table.row_store.row_store import RowStore
from warmup.table.row_store.store_view import sources_of
from warmup.table.schema import Table


@dataclass(frozen=True, slots=True)
class TableView:
    """A table of rows of a store; the keys that were asked for and have none; keys in conflict."""

    table: Table
    missing: tuple[str, ...]
    conflicts: tuple[str, ...]


def view_like(store: RowStore, like: Table, *, every: bool = False) -> TableView:
    """Return the table with the provenance and policy of *like*, and the store's rows for its keys.

    With *every* the keys are all that the store has for such a table. Where winners of *like* are
    templates, rows with another source of these templates do not answer.

    Raises:
        StoreError: there is no store, or a file with such rows is damaged.
        TableFormatError: a row is not valid.
    """
    view = store.view(like, sources_of(like.rows.values()), None if every else like.rows.keys())
    keys = sorted(view.keys() if every else like.rows.keys())
    found = {key: answer for key in keys if (answer := view.get(key)) is not None}
    rows = {key: answer.row for key, answer in found.items()}
    conflicts = tuple(
        key
        for key, answer in found.items()
        if any(other.winner != answer.row.winner for other in answer.others)
    )
    imported = {key: each for key, each in like.imported.items() if key not in rows}
    table = replace(like, rows=rows, imported=imported)
    return TableView(table, tuple(key for key in keys if key not in rows), conflicts)
