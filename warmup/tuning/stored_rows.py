"""`StoredRows`: rows of a store that a build takes in place of measuring them, and gives back.

A row that is taken is a row of the table, so that the build judges the outputs with it as with its
own rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warmup.core.errors import TableError
from warmup.core.events import logger
from warmup.core.rows import Row
from warmup.table import Table
from warmup.table.row_store import RowStore
from warmup.table.row_store.store_view import StoreView
from warmup.table.store import read


@dataclass
class StoredRows:
    """What a build takes from ``view``, None where the store is still empty.

    ``taken`` are the rows by key that the build has asked for and that its table lacked. They are
    in the table on disk after `warmup.tuning.progress.Progress.flush`, unless ``is_dry``.
    """

    view: StoreView | None = None
    is_dry: bool = False
    taken: dict[str, Row] = field(default_factory=dict)

    @property
    def answered(self) -> tuple[str, ...]:
        """The keys that were taken and need no measurement."""
        return tuple(key for key, row in self.taken.items() if row.untrusted is None)

    def take(self, key: str) -> Row | None:
        """Return the store's row for *key*, which is taken then; None where it has none.

        A row that is not trusted is taken too: its key is measured without its winner.
        """
        if key in self.taken:
            return self.taken[key]
        found = None if self.view is None else self.view.get(key)
        if found is None:
            return None
        self.taken[key] = found.row
        return found.row


class KnownRows(Mapping[str, Row]):
    """The rows of a table, and a row of a store when a key is asked that the table lacks.

    Only rows of the table and those taken before are listed.
    """

    def __init__(
        self, rows: Mapping[str, Row], stored: StoredRows, forced: Mapping[str, Row] | None = None
    ) -> None:
        self._rows = rows
        self._stored = stored
        self._forced = forced or {}

    def __getitem__(self, key: str) -> Row:
        row = self._forced.get(key) or self._rows.get(key) or self._stored.take(key)
        if row is None:
            raise KeyError(key)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter({**self._rows, **self._stored.taken, **self._forced})

    def __len__(self) -> int:
        return len({**self._rows, **self._stored.taken, **self._forced})


def open_stored(
    store: str | None, like: Table, sources: Callable[[], Mapping[str, str]], *, is_dry: bool
) -> StoredRows | None:
    """Return the rows of *store* that may stand in the table *like*; None without a store.

    *sources* returns the source of each template of this torch, by its uid. A store that is not
    there yet has no rows. With *is_dry* no row is written to the table.

    Raises:
        SettingsError: the store's URL needs a package that is not installed.
        StoreError: the store is damaged, or the place is something else.
    """
    if store is None:
        return None
    rows = RowStore(store)
    return StoredRows(rows.view(like, sources()) if rows.is_there() else None, is_dry)


@contextlib.contextmanager
def giving_back(store: str | None, path: Path) -> Iterator[None]:
    """Add the rows of the table at *path* to *store* when the context ends, however it ends.

    Rows that the store has are not added again. Where the build failed, its error is raised, and a
    store that cannot be written is only logged: every row is in the table.

    Raises:
        TableError: the build went well, and the store cannot be written.
    """
    try:
        yield
    except BaseException:
        try:
            _give_back(store, path)
        except TableError as error:
            logger.warning("rows of %s were not added to the store: %s", path, error)
        raise
    _give_back(store, path)


def _give_back(store: str | None, path: Path) -> None:
    if store is not None and path.exists():
        added = RowStore(store).add(read(path))
        logger.info("added to the store %s: %d rows", store, len(added.added))
        for error in added.damaged:
            logger.warning("%s", error)
