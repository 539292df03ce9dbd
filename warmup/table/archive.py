"""`Archive`: the zip archive of a bundle, read without trust and without holding a member whole.

Only the form that `write_bundle` writes is accepted: members stored or compressed by DEFLATE, one
behind the other from the first byte on, then the central directory, then the end record; no zip64,
no comments, no extra fields. So the number of members is known before the directory is read, no
decompressor but zlib's starts, and no two members share bytes.
(PKWARE's APPNOTE.TXT 6.3, sections 4.3.7, 4.3.12 and 4.3.16.)
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from warmup.core.errors import BundleError

MAX_ENTRIES: Final = 16_385  # a manifest and 16,384 files
MAX_ENTRY_NAME: Final = 256
_MAX_ARCHIVE_BYTES: Final = 1024**3 + 32 * 1024**2
_PIECE: Final = 256 * 1024
_STORED: Final = 0
_DEFLATED: Final = 8
_END_RECORD: Final = struct.Struct("<4s4H2IH")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_LOCAL: Final = struct.Struct("<4s5H3I2H")


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A member as the central directory describes it; sizes and ``offset`` in bytes."""

    name: str
    method: int
    crc: int
    packed: int
    size: int
    offset: int


class Archive:
    """The open archive *file*, whose directory has been checked; *path* is for messages.

    ``entries`` are in the order of the file.

    Raises:
        BundleError: the file is no archive of the accepted form.
    """

    entries: tuple[ArchiveEntry, ...]

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self.entries = tuple(self._read_directory())

    def read(self, entry: ArchiveEntry) -> Iterator[bytes]:
        """Yield the content of *entry* in pieces of at most 256 KiB.

        Raises:
            BundleError: the content is damaged, or has another size than the directory states.
        """
        local = self._read_at(entry.offset, _LOCAL.size + len(entry.name))
        signature, _, flags, method, _, _, *numbers, name_length, extra = _LOCAL.unpack_from(local)
        self._check(
            signature == b"PK\x03\x04"
            and (flags, method, extra) == (0, entry.method, 0)
            and numbers == [entry.crc, entry.packed, entry.size]
            and name_length == len(entry.name)
            and local[_LOCAL.size :] == entry.name.encode("ascii"),
            f"the header of {entry.name} differs from the directory",
        )
        crc = size = 0
        for piece in self._unpacked(entry, entry.offset + len(local)):
            size += len(piece)
            self._check(size <= entry.size, f"{entry.name} is larger than {entry.size} bytes")
            crc = zlib.crc32(piece, crc)
            yield piece
        self._check((size, crc) == (entry.size, entry.crc), f"{entry.name} is damaged")

    def _unpacked(self, entry: ArchiveEntry, position: int) -> Iterator[bytes]:
        end = position + entry.packed
        if entry.method == _STORED:
            for start in range(position, end, _PIECE):
                yield self._read_at(start, min(_PIECE, end - start))
            return
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        while not engine.eof:
            packed = engine.unconsumed_tail
            if not packed:
                packed = self._read_at(position, min(_PIECE, end - position))
                position += len(packed)
            try:
                piece = engine.decompress(packed, _PIECE)
            except zlib.error as error:
                raise self._error(f"{entry.name} is damaged ({error})") from error
            self._check(bool(packed or piece or engine.eof), f"{entry.name} is cut off")
            yield piece
        self._check(position == end and not engine.unused_data, f"{entry.name} is damaged")

    def _read_directory(self) -> Iterator[ArchiveEntry]:
        length = self._file.seek(0, 2)
        self._check(length <= _MAX_ARCHIVE_BYTES, f"it is larger than {_MAX_ARCHIVE_BYTES} bytes")
        record = (
            self._read_at(length - _END_RECORD.size, _END_RECORD.size)
            if length >= _END_RECORD.size
            else b""
        )
        self._check(
            record.startswith(b"PK\x05\x06"),
            "it is no zip archive as `warmup build` writes it, or it is cut off",
        )
        _, disk, first_disk, here, count, size, offset, comment = _END_RECORD.unpack(record)
        self._check(disk == first_disk == comment == 0 and here == count, "it is no whole archive")
        self._check(0 < count <= MAX_ENTRIES, f"it has {count} files, at most {MAX_ENTRIES}")
        self._check(
            offset + size + _END_RECORD.size == length
            and size <= count * (_CENTRAL.size + MAX_ENTRY_NAME),
            "its directory has another size than its files need",
        )
        directory = self._read_at(offset, size)
        position = expected = 0
        for _ in range(count):
            self._check(position + _CENTRAL.size <= size, "its directory is cut off")
            fields = _CENTRAL.unpack_from(directory, position)
            signature, _, _, flags, method, _, _, crc, packed, unpacked, *rest = fields
            name_length, extra, remark, disk, _, attributes, start = rest
            position += _CENTRAL.size
            raw = directory[position : position + name_length]
            position += name_length
            kind = stat.S_IFMT(attributes >> 16)
            self._check(signature == b"PK\x01\x02", "its directory is damaged")
            self._check(
                0 < len(raw) == name_length <= MAX_ENTRY_NAME and raw.isascii(),
                "its directory has an invalid name",
            )
            name = raw.decode("ascii")
            self._check(kind in (0, stat.S_IFREG), f"{name!r} is no regular file")
            self._check(
                method == _DEFLATED or (method == _STORED and packed == unpacked),
                f"{name!r} is compressed by method {method}, accepted is DEFLATE",
            )
            self._check(
                (flags, extra, remark, disk) == (0, 0, 0, 0),
                f"{name!r} has attributes that `warmup build` does not write",
            )
            self._check(start == expected, f"{name!r} does not begin where the file before ends")
            expected += _LOCAL.size + name_length + packed
            yield ArchiveEntry(name, method, crc, packed, unpacked, start)
        self._check((position, expected) == (size, offset), "it has bytes that belong to no file")

    def _read_at(self, position: int, count: int) -> bytes:
        try:
            self._file.seek(position)
            content = self._file.read(count)
        except OSError as error:
            raise self._error(f"it cannot be read ({error.strerror})") from error
        self._check(len(content) == count, "it is cut off")
        return content

    def _check(self, is_valid: bool, problem: str) -> None:  # noqa: FBT001  reads as a sentence
        if not is_valid:
            raise self._error(problem)

    def _error(self, problem: str) -> BundleError:
        return BundleError(str(self._path), problem)
