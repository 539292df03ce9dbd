"""`Progress`: the table on disk while a build runs, and which of its rows are measured again."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from warmup.core.method import Search
from warmup.core.rows import Row, Tuned
from warmup.keys.registry import kind_of
from warmup.table import Table
from warmup.table.store import add_rows, remove_rows, write
from warmup.tuning.report import Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Revisit:
    """Which problems with a row are measured again: *every*, those of *keys*, or a wider search.

    A row that was searched less far than ``search`` is measured again, where ``chosen`` has its key
    (None: any key) and until the clock of `time.monotonic` reads ``until``.
    """

    every: bool = False
    keys: frozenset[str] = frozenset()
    search: Search = Search.DEFAULT
    chosen: frozenset[str] | None = None
    until: float = math.inf


@dataclass(kw_only=True)
class Progress:
    """The table at ``path`` while a build adds rows to it; each finished problem is on disk.

    ``replaces``: the first row written takes the place of the whole table that stands at ``path``.
    ``can_search``: this device has candidates beyond inductor's list. ``given_up`` says, by key,
    why a problem could not be measured; the row that such a key has is left alone. ``tuned`` are
    the problems measured by this build, in order.
    """

    path: Path
    table: Table
    replaces: bool
    observer: Observer
    can_search: bool
    given_up: Mapping[str, str]
    revisit: Revisit = field(default_factory=Revisit)
    tuned: list[Tuned] = field(default_factory=list)
    _done: set[str] = field(default_factory=set)
    _replaced: dict[str, Row] = field(default_factory=dict)

    @property
    def rows(self) -> Mapping[str, Row]:
        """The rows on disk, by key."""
        return self.table.rows

    def asks_again(self, key: str) -> bool:
        """Whether *key* has a row that is to be measured again, and was not yet in this build."""
        row = self.rows.get(key)
        if row is None or key in self._done or key in self.given_up:
            return False
        revisit = self.revisit
        if revisit.every or key in revisit.keys:
            return True
        is_chosen = revisit.chosen is None or key in revisit.chosen
        is_open = row.evidence.search.is_narrower_than(revisit.search)
        can_search = self.can_search and kind_of(key).is_searchable
        return is_chosen and is_open and can_search and time.monotonic() < revisit.until

    def lacks(self, key: str) -> bool:
        """Whether *key* is to be measured: it has no row, or one that is to be measured again."""
        return key not in self.rows or self.asks_again(key)

    def save(self, tuned: Tuned) -> None:
        """Put a finished problem on disk.

        Raises:
            TableError: the table cannot be written.
        """
        table = self.table
        rows: Mapping[str, Row] = {tuned.key: tuned.row}
        if (before := table.rows.get(tuned.key)) is not None:
            self._replaced[tuned.key] = before
        self._done.add(tuned.key)
        if self.replaces:  # by --force: another device's table goes when its successor has a row
            self.table, self.replaces = replace(table, rows=rows), False
            write(self.path, self.table)
        else:
            self.table = add_rows(
                self.path, table.provenance, table.policy, rows, redo=before is not None
            )
        self.tuned.append(tuned)
        self.observer.problem_finished(tuned)

    def fresh(self, since: int) -> set[str]:
        """Return the keys measured from number *since* of the build on."""
        return {tuned.key for tuned in self.tuned[since:]}

    def take_back(self, keys: Collection[str], since: int) -> None:
        """Remove the rows of *keys*, measured from number *since* on; replaced rows stand again.

        Raises:
            TableError: the table cannot be written.
        """
        self.tuned[since:] = [tuned for tuned in self.tuned[since:] if tuned.key not in keys]
        before = {key: row for key, row in self._replaced.items() if key in keys}
        if keys:
            self.table = remove_rows(self.path, set(keys))
        if before:
            origin = self.table
            self.table = add_rows(self.path, origin.provenance, origin.policy, before)

    def reopen(self, keys: Collection[str]) -> None:
        """Let *keys* be measured once more, though this build has measured them."""
        self._done.difference_update(keys)
