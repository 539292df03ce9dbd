"""`RowStore`: rows of many tables, added and taken by table. Finished rows are never changed.

Every change is a new file (`warmup.table.row_store.row_segment`), so that a reader needs no lock
and a killed writer loses only what it had not finished. Many small files of one group are merged
into one; a file is removed after all its rows are in another file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import StoreError, TableError
from warmup.core.strict_json import JsonError, parse_json
from warmup.table.codec import encode
from warmup.table.row_store.group_files import GroupFiles, merge_files
from warmup.table.row_store.row_group import (
    GROUP_FILE,
    GROUPS,
    RowGroup,
    group_of,
    origin_line,
    read_origin,
    without_rows,
)
from warmup.table.row_store.row_segment import (
    MAX_SEGMENT_BYTES,
    read_segment,
    rows_in_name,
    write_segments,
)
from warmup.table.row_store.store_files import StoreFiles, open_files
from warmup.table.row_store.store_view import StoreView, line_of
from warmup.table.schema import Table

MARKER: Final = "warmup-store.json"
STORE_FORMAT: Final = 1
MARKER_TEXT: Final = '{"format": 1, "kind": "warmup rows"}\n'
_MAX_MARKER: Final = 4096
_MAX_GROUP_BYTES: Final = 2**20
_MOST_SEGMENTS: Final = 64  # files of a group; one more, and the smallest are merged
_TRIES: Final = 20  # of reading, while another writer merges files


@dataclass(frozen=True, slots=True)
class Addition:
    """What `RowStore.add` did with a table's rows.

    ``added`` are the keys of rows that the store did not have, ``known`` counts those it had.
    ``conflicts`` are the keys among ``added`` for which the store has another winner too.
    ``damaged`` are files of the store that cannot be read; the rows were added all the same.
    """

    group: str
    added: tuple[str, ...]
    known: int
    conflicts: tuple[str, ...] = ()
    damaged: tuple[StoreError, ...] = ()


class RowStore:
    """The store of rows at *location*, a folder or a URL; it is made by the first `add`.

    Raises:
        SettingsError: the URL needs a package that is not installed.
    """

    def __init__(self, location: str) -> None:
        self.files: StoreFiles = open_files(location)
        self.location = location

    def add(self, table: Table) -> Addition:
        """Add the rows of *table* that the store does not have; nothing is replaced or removed.

        When this returns, the rows are on the disk. Imported configs, which nobody measured here,
        are not added.

        Raises:
            StoreError: the place is no store, or cannot be written; no row was lost.
        """
        with self.files.locked():
            if not self.is_there():
                self.files.write(MARKER, MARKER_TEXT.encode())
            fitting = [each for each in self.groups() if each.fits(table)]
            own = fitting[0] if fitting else group_of(table)
            read = [self.load(each) for each in fitting]
            if not fitting:
                name = f"{GROUPS}/{own.name}/{GROUP_FILE}"
                self.files.write(name, encode(own.origin).encode("ascii"))
            origin, text = origin_line(without_rows(table))
            lines = [line_of(key, row, origin) for key, row in table.rows.items()]
            keys = {line[: line.index(b"\t")] for line in lines}
            known = {
                line.rpartition(b"\t")[0]
                for each in read
                for segment in each.segments.values()
                for line in segment.lines
                if line.partition(b"\t")[0] in keys
            }
            new = [line for line in lines if line.rpartition(b"\t")[0] not in known]
            for name, content in write_segments(new, {origin: text}):
                self.files.write(f"{GROUPS}/{own.name}/{name}", content)
            if new and read and len(read[0].segments) >= _MOST_SEGMENTS:
                self._merge_small(self.load(own))
            return Addition(
                own.name,
                tuple(line.split(b"\t", 1)[0].decode() for line in new),
                len(lines) - len(new),
                _conflicts(new, known),
                tuple(error for each in read for error in each.damaged.values()),
            )

    def view(
        self,
        like: Table,
        sources: Mapping[str, str] | None = None,
        keys: Collection[str] | None = None,
    ) -> StoreView:
        """Return the rows that may stand in *like*: of its device class, versions and policy.

        With *keys* only the rows of these are kept in memory. *sources* has, by uid, the source of
        each template that is served, see `StoreView`.

        Raises:
            StoreError: there is no store, or a file with such rows is damaged.
        """
        self.check_there()
        read = [self.load(each) for each in self.groups() if each.fits(like)]
        errors = [error for each in read for error in each.damaged.values()]
        for error in (*errors, *self.undescribed().values()):
            raise error
        segments = [segment for each in read for segment in each.segments.values()]
        return StoreView(segments, like, sources or {}, self.location, keys)

    def load_all(self) -> list[GroupFiles]:
        """Return the files of every group; files that cannot be read are named in it.

        Raises:
            StoreError: there is no store at this place, or it cannot be read.
        """
        self.check_there()
        for error in self.undescribed().values():
            raise error
        return [self.load(each) for each in self.groups()]

    def groups(self) -> list[RowGroup]:
        """Return the groups of the store. A group without its description has that of its rows.

        Raises:
            StoreError: the store cannot be read.
        """
        found = (self._group(name, files) for name, files in self._by_group().items())
        return [each for each in found if each is not None]

    def undescribed(self) -> dict[str, StoreError]:
        """Return the row files of groups of which nothing can be read, each with what is wrong.

        Raises:
            StoreError: the store cannot be read.
        """
        found = {}
        for group, files in self._by_group().items():
            if self._group(group, files) is None:
                reason = "damaged, as is all of its group"
                advice = "`warmup store gc` sets it aside; add the tables of these rows again"
                for name in files:
                    found[name] = StoreError(f"{self.location}/{name}", reason, advice)
        return found

    def _by_group(self) -> dict[str, list[str]]:
        """Return the files of each group, its description and its row files."""
        by_group: dict[str, list[str]] = defaultdict(list)
        for name in self.files.names():
            top, _, rest = name.partition("/")
            group, _, last = rest.partition("/")
            if top == GROUPS and (last == GROUP_FILE or rows_in_name(last) is not None):
                by_group[group].append(name)
        return by_group

    def load(self, group: RowGroup) -> GroupFiles:
        """Return the files of *group*, read whole.

        Raises:
            StoreError: the store cannot be read, or other writers change it again and again.
        """
        start = f"{GROUPS}/{group.name}/"
        for _ in range(_TRIES):
            found = GroupFiles(group)
            for name in self.files.names():
                if not name.startswith(start) or rows_in_name(name[len(start) :]) is None:
                    continue
                content = self.files.read(name, MAX_SEGMENT_BYTES)
                if content is None:  # merged into another file since it was listed
                    break
                found.sizes[name] = len(content)
                try:
                    found.segments[name] = read_segment(self.location, name, content)
                except StoreError as error:
                    found.damaged[name] = error
            else:
                return found
        raise StoreError(self.location, "other writers change it all the time", "try again later")

    def is_there(self) -> bool:
        """Return whether there is a store at this place; False where there is nothing at all.

        Raises:
            StoreError: something else is there, or a store of another version.
        """
        content = self.files.read(MARKER, _MAX_MARKER)
        if content is None:
            if self.files.is_empty():
                return False
            if any(name.startswith(f"{GROUPS}/") for name in self.files.names()):
                raise self._unmarked("has no warmup-store.json")
            advice = "name an empty folder, or one that `warmup store add` made"
            raise StoreError(self.location, "is no store of rows, and not empty", advice)
        try:
            value = parse_json(content.decode("ascii", "replace"))
        except JsonError:
            value = None
        if not isinstance(value, dict) or value.get("kind") != "warmup rows":
            raise self._unmarked("its warmup-store.json is damaged")
        if value.get("format") != STORE_FORMAT:
            raise StoreError(
                self.location,
                f"format {value.get('format')!r} is not that of this warmup ({STORE_FORMAT})",
                "upgrade inductor-warmup, or name another store",
            )
        return True

    def check_there(self) -> None:
        """Check that there is a store at this place.

        Raises:
            StoreError: there is none.
        """
        if not self.is_there():
            advice = "make one with `warmup store add TABLE --store PLACE`"
            raise StoreError(self.location, "there is no store of rows", advice)

    def _unmarked(self, problem: str) -> StoreError:
        return StoreError(self.location, problem, "`warmup store gc` writes that file again")

    def _group(self, name: str, files: Sequence[str]) -> RowGroup | None:
        """Return the group *name* by its description, or by a row file; None without either."""
        description = self.files.read(f"{GROUPS}/{name}/{GROUP_FILE}", _MAX_GROUP_BYTES)
        if description is not None and (found := self._described(name, description)) is not None:
            return found
        for file in files:
            content = self.files.read(file, MAX_SEGMENT_BYTES)
            try:
                segment = read_segment(self.location, file, content or b"")
            except StoreError:
                continue  # the caller's `load` reports it, if another file describes the group
            for text in segment.origins.values():
                if (found := self._described(name, text)) is not None:
                    return found
        return None

    def _described(self, name: str, text: bytes) -> RowGroup | None:
        try:
            return RowGroup(name, without_rows(read_origin(text, self.location)))
        except TableError:
            return None  # damaged, or of a newer warmup

    def _merge_small(self, found: GroupFiles) -> None:
        """Merge the smallest files of the group *found* into one where it has too many."""
        if len(found.segments) <= _MOST_SEGMENTS:
            return
        smallest = sorted(found.segments, key=lambda name: found.sizes[name])[:_MOST_SEGMENTS]
        merge_files(self.files, found, smallest)


def _conflicts(new: Iterable[bytes], known: Iterable[bytes]) -> tuple[str, ...]:
    """Return the keys of *new* lines for which *known* rows have another winner, sorted."""
    keys = {line.split(b"\t", 1)[0]: _winner(line.rpartition(b"\t")[0]) for line in new}
    found = {
        key
        for line in known
        if (key := line.split(b"\t", 1)[0]) in keys and _winner(line) != keys[key]
    }
    return tuple(sorted(key.decode() for key in found))


def _winner(line: bytes) -> bytes:
    """Return the text of the winner in *line*, a key and a row: names are sorted, so it is last."""
    return line[line.rfind(b'"winner":') :]
