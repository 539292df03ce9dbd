"""`Journal`: what builds have added to a table and not yet written into it, one line for each save.

The file ``t.json.journal`` stands beside the table ``t.json``. A line is appended and synced for
each save, so that a save costs its own bytes whatever the table has; `warmup.table.store` folds the
lines into the table at the end of a build. A line is ``LENGTH CHECKSUM JSON``: the bytes of the
JSON, and 16 hex digits of the SHA-256 over the JSON of all lines up to it, so that no line is lost,
repeated or moved. The first line has the digest of the table that the lines belong to. Before a
fold replaces the table, a line gets the digest of the new one: a build that is killed between the
two leaves a journal that belongs to either.

A journal is not trusted, as a table is not. A last line that is not whole, because its writer was
killed or writes it now, is left out. All else that is damaged is an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from warmup.core.device import Runtime
from warmup.core.errors import TableFormatError
from warmup.core.files import create_like, open_regular, sync_folder
from warmup.core.strict_json import read_json
from warmup.table.codec import (
    Json,
    ProvenanceJson,
    RowJson,
    provenance_from,
    provenance_json,
    row_sections,
    rows_from,
)
from warmup.table.schema import MAX_TABLE_BYTES, Entry

_CHECKSUM_DIGITS: Final = 16
_Digest = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")]


class EntryJson(Json, kw_only=True):
    """The JSON of a line; ``digest`` is of the table before the first line, or after a fold."""

    digest: _Digest = ""
    provenance: ProvenanceJson | None = None
    removed: tuple[str, ...] = ()
    rows: dict[str, dict[str, RowJson]] = msgspec.field(default_factory=dict)


def journal_path(table: Path) -> Path:
    return table.with_name(f"{table.name}.journal")


class Journal:
    """The journal at ``path``, as far as it was read: ``size`` bytes of whole lines.

    ``torn`` counts the bytes behind them, of a line that is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.torn = 0
        self._lines = 0
        self._sum = hashlib.sha256()

    def read_on(self) -> list[Entry]:
        """Return the entries behind those that were read, also where there is no file."""
        # A TableFormatError: the file is no journal, is damaged, or is shorter than before.
        try:
            with open_regular(self.path, follows_links=False) as file:
                size = os.fstat(file.fileno()).st_size
                if size > MAX_TABLE_BYTES:
                    raise self._damage(f"larger than {MAX_TABLE_BYTES} bytes")
                if size < self.size:
                    raise self._damage("shorter than it was")
                file.seek(self.size)
                data = file.read(size - self.size)
        except FileNotFoundError:
            if self.size:
                raise self._damage("it is gone") from None
            return []
        except OSError as error:
            if isinstance(error, TableFormatError):
                raise
            if error.errno == errno.ENAMETOOLONG and not self.size:
                return []
            is_link = error.errno == errno.ELOOP
            raise self._damage("it is a link" if is_link else error.strerror or "") from None
        return self._entries(data)

    def append(self, entry: Entry, table: Path, digest: str, room: int | None = None) -> bool:
        """Append *entry* and sync it; a new journal is for the file *table*, which has *digest*.

        Where the journal would have more than *room* bytes, nothing is written: return False. The
        caller holds the lock of the table and has read on. After an OSError the file is as before.
        """
        entries = [entry] if self.size else [Entry(digest=digest), entry]
        lines, checksum = self._lines_of(entries)
        if room is not None and self.size + len(lines) > room:
            return False
        descriptor = create_like(self.path, table)
        try:
            _write_all(descriptor, lines)
            os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self.size)
            raise
        finally:
            os.close(descriptor)
        if not self.size:
            sync_folder(self.path.parent)
        self._sum = checksum
        self.size += len(lines)
        self._lines += len(entries)
        return True

    def trim(self) -> None:
        """Remove the line that is not whole, whose writer was killed."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, self.size)
        finally:
            os.close(descriptor)
        self.torn = 0

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _lines_of(self, entries: Iterable[Entry]) -> tuple[bytes, hashlib._Hash]:
        checksum, lines = self._sum.copy(), b""
        for entry in entries:
            origin = entry.provenance
            json = EntryJson(
                digest=entry.digest,
                provenance=None if origin is None else provenance_json(origin, ""),
                removed=entry.removed,
                rows=row_sections(entry.rows),
            )
            payload = msgspec.json.encode(json)
            self._decode(payload)
            checksum.update(payload)
            digits = checksum.hexdigest()[:_CHECKSUM_DIGITS]
            lines += b"%d %b %b\n" % (len(payload), digits.encode(), payload)
        return lines, checksum

    def _entries(self, data: bytes) -> list[Entry]:
        *lines, rest = data.split(b"\n")
        entries, whole = [], 0
        for number, line in enumerate(lines, start=1):
            payload, is_cut = self._checked(line)
            if payload is None:
                if number < len(lines) or rest or is_cut:
                    raise self._damage(f"line {self._lines + 1} is damaged")
                break  # where the power failed before all of its blocks were on the disk
            self._lines += 1
            whole += len(line) + 1
            entries.append(self._decode(payload))
        self.size += whole
        self.torn = len(data) - whole
        return entries

    def _checked(self, line: bytes) -> tuple[bytes | None, bool]:
        length, _, rest = line.partition(b" ")
        digits, _, payload = rest.partition(b" ")
        checksum = self._sum.copy()
        checksum.update(payload)
        if length != b"%d" % len(payload):
            return None, True
        if digits != checksum.hexdigest()[:_CHECKSUM_DIGITS].encode():
            return None, False
        self._sum = checksum
        return payload, False

    def _decode(self, payload: bytes) -> Entry:
        path = str(self.path)
        json, _ = read_json(payload, EntryJson, path)
        changes = json.rows or json.removed or json.provenance
        if bool(json.digest) == bool(changes):  # a line is one of both
            raise self._damage(f"line {self._lines} has no change")
        provenance = None if json.provenance is None else provenance_from(json.provenance, path)
        return Entry(rows_from(json.rows, path), json.removed, provenance, json.digest)

    def _damage(self, reason: str) -> TableFormatError:
        advice = "restore the file, or remove it and lose its rows"
        return TableFormatError(str(self.path), "", f"the journal: {reason}", advice)


def entries_for(
    entries: Sequence[Entry], digest: str, runtime: Runtime | None, path: Path
) -> list[Entry]:
    """Return those of *entries*, all of the journal at *path*, that a table does not have yet."""
    # The table's file has *digest* and *runtime*; both are empty where there is none. A
    # TableFormatError: the journal is of another table, device or software.
    if not entries:
        return []
    place = max((at for at, each in enumerate(entries) if each.digest == digest), default=-1)
    later = [each for each in entries[place + 1 :] if not each.digest]
    runtimes = {each.provenance.runtime for each in later if each.provenance is not None}
    if not digest or place < 0 or runtimes - {runtime}:
        raise TableFormatError(
            str(path),
            "",
            "it is the journal of another table than the file beside it",
            "restore that table, or remove the journal, whose rows are lost then",
        )
    return later


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
