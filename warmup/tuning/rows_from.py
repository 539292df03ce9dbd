"""`EarlierRows`: rows of other tables that a build takes in place of measuring (`--rows-from`).

A row that is taken becomes a row of the build's own table, unchanged, so that the build judges the
model's outputs with it as with the rows that it measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from warmup.core.rows import Family, Row
from warmup.table.merge import best_row
from warmup.table.schema import Table
from warmup.table.store import origin_differences, read

NOT_TRUSTED: Final = "a table does not trust the winner"
MEASURED_WORSE: Final = "the row of another table was measured better"
TEMPLATE_CHANGED: Final = "the source of the winner's template was changed"
MEASURED_AGAIN: Final = "the build measures rows again"


@dataclass(frozen=True, slots=True)
class RowSource:
    """What a build used of the table at ``path``: the keys of rows taken and, by key, why not.

    A table that does not fit is refused with all its rows. Of a table that fits, only rows that the
    build needed are taken or refused.
    """

    path: Path
    taken: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many rows were refused, by reason, the most frequent first."""
        return dict(Counter(self.refused.values()).most_common())


class EarlierRows:
    """The rows of *tables*, by path, that may stand in the table *like*; each is taken on request.

    Rows may where they may be added to a table and where *templates*, the source of each template
    of this torch by uid, has that of the winner. With *measures_again* no row is taken. With
    *is_dry* nothing is written. ``taken`` has the rows that the build asked for and that its table
    lacked; they are on disk after `warmup.tuning.progress.Progress.flush`.
    """

    def __init__(
        self,
        tables: Mapping[Path, Table],
        like: Table,
        templates: Mapping[str, str],
        *,
        measures_again: bool = False,
        is_dry: bool = False,
    ) -> None:
        self.is_dry = is_dry
        self.taken: dict[str, Row] = {}
        self._near_tie = like.policy.timing.near_tie
        self._templates = templates
        self._fitting: dict[Path, Table] = {}
        self._sources: dict[str, Path] = {}
        self._refused: dict[Path, dict[str, str]] = {path: {} for path in tables}
        for path, table in tables.items():
            differs = origin_differences(table, like.provenance.runtime, like.policy)
            if measures_again or differs:
                reason = MEASURED_AGAIN if measures_again else "; ".join(differs)
                self._refused[path] = dict.fromkeys(table.rows, reason)
            else:
                self._fitting[path] = table

    def take(self, key: str) -> Row | None:
        """Return the row for *key*, which is taken then; None where no table has one that fits.

        Of several rows the best measured one is taken, as by ``merge --prefer evidence``.
        """
        if key in self.taken:
            return self.taken[key]
        rows = {path: each.rows[key] for path, each in self._fitting.items() if key in each.rows}
        current = {path: row for path, row in rows.items() if self._is_current(row)}
        best = best_row([*current.values()], self._near_tie) if current else None
        if best is not None and best.untrusted is None:
            self.taken[key] = best
            self._sources[key] = next(path for path, row in current.items() if row is best)
        for path, row in rows.items():
            if path not in current:
                self._refused[path][key] = TEMPLATE_CHANGED
            elif row.untrusted is not None or key not in self.taken:
                self._refused[path][key] = NOT_TRUSTED
            elif path != self._sources[key]:
                self._refused[path][key] = MEASURED_WORSE
        return self.taken.get(key)

    def used(self, measured: Collection[str] = ()) -> tuple[RowSource, ...]:
        """Return what was used of each table; rows of keys *measured* by the build were not."""
        return tuple(
            RowSource(
                path,
                tuple(
                    key
                    for key, source in self._sources.items()
                    if source == path and key not in measured
                ),
                dict(refused),
            )
            for path, refused in self._refused.items()
        )

    def _is_current(self, row: Row) -> bool:
        winner = row.winner
        if winner.family is not Family.TEMPLATE or winner.source_hash is None:
            return True
        return self._templates.get(winner.uid, winner.source_hash) == winner.source_hash


class KnownRows(Mapping[str, Row]):
    """The rows of a table, and an earlier row when a key is looked up that the table lacks.

    Only rows of the table and those taken before are listed.
    """

    def __init__(
        self, rows: Mapping[str, Row], earlier: EarlierRows, forced: Mapping[str, Row] | None = None
    ) -> None:
        self._rows = rows
        self._earlier = earlier
        self._forced = forced or {}

    def __getitem__(self, key: str) -> Row:
        row = self._forced.get(key) or self._rows.get(key) or self._earlier.take(key)
        if row is None:
            raise KeyError(key)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter({**self._rows, **self._earlier.taken, **self._forced})

    def __len__(self) -> int:
        return len({**self._rows, **self._earlier.taken, **self._forced})


def open_earlier(
    paths: Sequence[str | Path],
    like: Table,
    templates: Callable[[], Mapping[str, str]],
    *,
    measures_again: bool,
    is_dry: bool,
) -> EarlierRows | None:
    """Return the rows of the tables at *paths* that may stand in *like*; None without a path.

    Raises:
        TableError: a file is not there, or is no table.
    """
    tables = {Path(path): read(Path(path)) for path in paths}
    if not tables:
        return None
    return EarlierRows(tables, like, templates(), measures_again=measures_again, is_dry=is_dry)


def united_sources(*builds: Iterable[RowSource]) -> tuple[RowSource, ...]:
    """Return what several builds of one table, one after another, used of each source."""
    found: dict[Path, RowSource] = {}
    for source in (source for sources in builds for source in sources):
        before = found.get(source.path, RowSource(source.path))
        taken = tuple(dict.fromkeys((*before.taken, *source.taken)))
        refused = {**before.refused, **source.refused}
        found[source.path] = replace(
            source, taken=taken, refused={k: why for k, why in refused.items() if k not in taken}
        )
    return tuple(found.values())
