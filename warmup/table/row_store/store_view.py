"""`StoreView`: the rows of a store that may stand in one table, each read when it is asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import ProblemError, TableFormatError
from warmup.core.json_node import Node
from warmup.core.rows import Family, Row
from warmup.core.strict_json import JsonError, parse_json
from warmup.keys.registry import kind_of
from warmup.table.best_row import best_row
from warmup.table.canonical import compact
from warmup.table.codec import row_from_json
from warmup.table.encoding import row_to_json
from warmup.table.row_store.row_group import read_origin
from warmup.table.row_store.row_segment import RowSegment
from warmup.table.schema import Provenance, Table
from warmup.table.store import origin_differences

MAX_ROW_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The row that answers a key, where it was measured, and the other rows for the key.

    ``others`` are the rows that do not answer, also those for another source of the template.
    """

    row: Row
    origin: Provenance
    others: tuple[Row, ...] = ()


class StoreView:
    """The rows of *segments* that may stand in the table *like*, by key; with *keys* of those only.

    *sources* has, by uid, the source of each template that is served: a row whose winner has
    another one does not answer. *path* is that of the store, for errors.
    """

    def __init__(
        self,
        segments: Iterable[RowSegment],
        like: Table,
        sources: Mapping[str, str],
        path: str,
        keys: Collection[str] | None = None,
    ) -> None:
        self._like = like
        self._sources = sources
        self._path = path
        self._texts: dict[bytes, bytes] = {}
        self._origins: dict[bytes, Provenance | None] = {}
        self._lines: dict[bytes, list[bytes]] = defaultdict(list)
        wanted = None if keys is None else {key.encode("ascii", "replace") for key in keys}
        for segment in segments:
            self._texts.update(segment.origins)
            for line in segment.lines:
                key = line.partition(b"\t")[0]
                if wanted is None or key in wanted:
                    self._lines[key].append(line)

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def keys(self) -> Iterator[str]:
        """Yield each key that has a row, answering or not."""
        return (key.decode("ascii") for key in self._lines)

    def get(self, key: str) -> StoredAnswer | None:
        """Return what answers *key*; None where no row does.

        Raises:
            TableFormatError: a row for *key* is not valid.
        """
        found = [
            (row, origin)
            for line in dict.fromkeys(self._lines.get(key.encode("ascii", "replace"), ()))
            for origin in (self._origin(line[-16:]),)
            if origin is not None
            for row in (read_line(line, self._path)[1],)
        ]
        fitting = [row for row, _ in found if self._is_served(row)]
        if not fitting:
            return None
        answer = best_row(fitting, self._like.policy.timing.near_tie)
        origin = next(origin for row, origin in found if row is answer)
        return StoredAnswer(answer, origin, tuple(row for row, _ in found if row is not answer))

    def rows(self, key: str) -> list[Row]:
        """Return every row for *key*, as it was measured.

        Raises:
            TableFormatError: a row for *key* is not valid.
        """
        return [read_line(line, self._path)[1] for line in self._lines.get(key.encode(), ())]

    def _is_served(self, row: Row) -> bool:
        winner = row.winner
        if winner.family is not Family.TEMPLATE or winner.source_hash is None:
            return True
        return self._sources.get(winner.uid, winner.source_hash) == winner.source_hash

    def _origin(self, number: bytes) -> Provenance | None:
        """Return where rows with the id *number* were measured; None where these do not fit."""
        if number not in self._origins:
            table = read_origin(self._texts.get(number, b""), self._path)
            like = self._like
            differs = origin_differences(table, like.provenance.runtime, like.policy)
            self._origins[number] = None if differs else table.provenance
        return self._origins[number]


def sources_of(rows: Iterable[Row]) -> dict[str, str]:
    """Return the source of each template that wins in *rows*, by its uid."""
    return {
        row.winner.uid: row.winner.source_hash
        for row in rows
        if row.winner.family is Family.TEMPLATE and row.winner.source_hash is not None
    }


def line_of(key: str, row: Row, origin: bytes) -> bytes:
    """Return the line of *row*, measured at *origin*, for *key*."""
    return b"%s\t%s\t%s" % (key.encode("ascii"), compact(row_to_json(row)).encode("ascii"), origin)


def read_line(line: bytes, path: str) -> tuple[str, Row]:
    """Return the key and the row in *line*, which is not trusted; *path* is for errors.

    Raises:
        TableFormatError: the line has no valid row.
    """
    if len(line) > MAX_ROW_BYTES or line.count(b"\t") != 2:  # noqa: PLR2004  between three parts
        raise TableFormatError(path, "", f"a line is no row of at most {MAX_ROW_BYTES} bytes")
    key, text, _ = (part.decode("ascii", "replace") for part in line.split(b"\t"))
    try:
        kind = kind_of(key)
        kind.check(key)
        return key, row_from_json(kind, Node(parse_json(text), path, Node(None, path), key))
    except ProblemError:
        raise TableFormatError(path, "", "the name of a row is not a key") from None
    except JsonError as error:
        raise TableFormatError(path, "", f"a row is not JSON: {error}") from None
