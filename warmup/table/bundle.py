"""`Manifest` and the bundle file: the compiled winners of a table, in a file beside the table.

A zip archive. Its first member, ``manifest.json``, has the digest of the table, the facts of the
machine that must be equal, and every other member with its size and SHA-256. The other members are
code for the device and the host. Nothing here runs code or unpacks files to disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import stat
import struct
import sysconfig
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
from msgspec import Meta

from warmup.core.device import Runtime
from warmup.core.errors import BundleError, TableFormatError
from warmup.core.files import open_regular, replace_bytes
from warmup.core.strict_json import check_texts, read_json

# `Archive`: the zip archive of a bundle, read without trust and without holding a member whole.

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
    """The open archive *file*, whose directory is checked: a BundleError for another form."""

    entries: tuple[ArchiveEntry, ...]

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self.entries = tuple(self._read_directory())

    def read(self, entry: ArchiveEntry) -> Iterator[bytes]:
        """Yield the content of *entry* in pieces of at most 256 KiB; a BundleError if damaged."""
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


BUNDLE_SUFFIX: Final = ".bundle"
_BUNDLE_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
# A JSON value takes up to 34 times its text in memory ({"":0}), so 4 MiB take at most 150 MB.
_MAX_MANIFEST: Final = 4 * 1024 * 1024
_MAX_MEMBERS: Final = MAX_ENTRIES - 1
_MAX_BUNDLE_BYTES: Final = 1024**3
_SHOWN_DIGEST: Final = 12
_SHOWN: Final = 100  # characters of an invalid value in a message
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can have
# No part of a member's name starts with a dot, so that no member is unpacked outside its folder.
_FILE_NAME: Final = re.compile(
    r"[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]*(/[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]*)*"
)
_Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Size = Annotated[int, Meta(ge=0, le=_MAX_BUNDLE_BYTES)]
_Need = Annotated[str, Meta(max_length=256)]


class _ManifestJson(msgspec.Struct, forbid_unknown_fields=True):
    format: Annotated[int, Meta(ge=_BUNDLE_FORMAT, le=_BUNDLE_FORMAT)]
    table: _Sha256
    needs: dict[_Need, _Need]
    members: Annotated[dict[str, tuple[_Size, _Sha256]], Meta(max_length=_MAX_MEMBERS)]


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a bundle: its size in bytes, and its SHA-256 as hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The digest of the table, and the facts of the machine and the files that a bundle needs.

    Facts must be equal where it is used. Names of ``members`` have ``/`` between folders.
    """

    table: str
    needs: Mapping[str, str]
    members: Mapping[str, Member]

    def differences(self, table: str, here: Mapping[str, str]) -> tuple[str, ...]:
        """Return a line for each fact *here*, or table, with which the bundle cannot be used."""
        expected, actual = {"table": self.table, **self.needs}, {"table": table, **here}

        def shown(facts: Mapping[str, str], name: str) -> str:
            return facts.get(name, "none")[: _SHOWN_DIGEST if name == "table" else None]

        return tuple(
            f"{name}: bundle {shown(expected, name)}, here {shown(actual, name)}"
            for name in dict.fromkeys((*expected, *actual))
            if expected.get(name) != actual.get(name)
        )


def write_bundle(
    path: Path, table: str, needs: Mapping[str, str], files: Mapping[str, bytes]
) -> Manifest:
    """Write a bundle of *files* to *path*, and return its manifest, or a BundleError.

    Equal arguments give equal bytes. A reader of *path* sees the old file or the new one, whole.
    """
    members = {
        name: Member(len(content), hashlib.sha256(content).hexdigest())
        for name, content in sorted(files.items())
    }
    document = {
        "format": _BUNDLE_FORMAT,
        "table": table,
        "needs": dict(sorted(needs.items())),
        "members": {name: [member.size, member.sha256] for name, member in members.items()},
    }
    text = json.dumps(document, indent=1)
    manifest = _manifest_of(text.encode(), path)
    if len(text) > _MAX_MANIFEST:
        raise BundleError(str(path), f"its manifest is larger than {_MAX_MANIFEST} bytes")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry(_MANIFEST), text)
        for name in members:
            archive.writestr(_entry(name), files[name])
    try:
        replace_bytes(path, buffer.getvalue())
    except OSError as error:
        raise BundleError(str(path), f"it cannot be written ({error.strerror})") from error
    return manifest


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """A bundle that is open for reading; what is read is what was open when it was checked."""

    path: Path
    manifest: Manifest
    _archive: Archive
    _entries: tuple[ArchiveEntry, ...]

    def members(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name of each member, and its content in pieces, to be read before the next.

        A BundleError behind the last piece: the member differs from the manifest.
        """
        for entry in self._entries:
            yield entry.name, self._pieces(entry)

    def _pieces(self, entry: ArchiveEntry) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for piece in self._archive.read(entry):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != self.manifest.members[entry.name].sha256:
            raise BundleError(str(self.path), f"{entry.name} is not what the manifest says")


@contextlib.contextmanager
def open_bundle(path: Path) -> Iterator[OpenBundle]:
    """Open the bundle at *path*, with its manifest and the directory of its files checked.

    The file is opened once: the bundle that was checked is read, even if *path* is replaced
    meanwhile. A BundleError: there is none, it is invalid, or every user can write it.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise BundleError(str(path), "there is no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BundleError(str(path), f"it cannot be read ({reason})") from error
    with file:
        if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
            raise BundleError(str(path), "every user of this machine can write it")
        archive = Archive(path, file)
        manifest = _read_manifest(archive, path)
        yield OpenBundle(path, manifest, archive, archive.entries[1:])


def _read_manifest(archive: Archive, path: Path) -> Manifest:
    first, *others = archive.entries
    if first.name != _MANIFEST:
        raise BundleError(str(path), f"its first file is not {_MANIFEST}")
    if first.size > _MAX_MANIFEST:
        raise BundleError(str(path), f"its manifest is larger than {_MAX_MANIFEST} bytes")
    manifest = _manifest_of(b"".join(archive.read(first)), path)
    if sorted(entry.name for entry in others) != sorted(manifest.members):
        raise BundleError(str(path), "its files are not those that its manifest names")
    for entry in others:
        if entry.size != manifest.members[entry.name].size:
            raise BundleError(str(path), f"{entry.name} has another size than its manifest says")
    return manifest


def _manifest_of(text: bytes, path: Path) -> Manifest:
    try:
        json, _ = read_json(text, _ManifestJson, str(path))
        check_texts(json.needs, str(path), "needs")
    except TableFormatError as error:
        at = f" at {error.pointer[:_SHOWN]}" if error.pointer else ""
        raise BundleError(str(path), f"its manifest is damaged{at}: {error.reason}") from None
    for name in json.members:
        if len(name) > MAX_ENTRY_NAME or _FILE_NAME.fullmatch(name) is None:
            reason = f"its manifest has the invalid file name {name[:_SHOWN]!r}"
            raise BundleError(str(path), reason)
    members = {name: Member(*pair) for name, pair in json.members.items()}
    total = sum(member.size for member in members.values())
    if total > _MAX_BUNDLE_BYTES:
        reason = f"its manifest has {total} bytes in all, more than {_MAX_BUNDLE_BYTES}"
        raise BundleError(str(path), reason)
    return Manifest(json.table, json.needs, members)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def needs_of(runtime: Runtime) -> dict[str, str]:
    """Return the facts that must be equal for compiled code to run: for `Manifest.needs`.

    Not the driver, which runs code from older drivers, nor the facts that change the speed alone.
    """
    device = runtime.device
    needs = {
        "device.type": device.type,
        "device.arch": device.arch,
        "torch": runtime.torch,
        "triton": runtime.triton,
        "python": sysconfig.get_config_var("SOABI"),
    }
    if device.type == "cpu":
        # The C++ compiler uses every instruction set of this CPU.
        needs["device.flags"] = _cpu_flags()
    else:
        needs["cuda"] = runtime.cuda
    return {name: str(value) for name, value in needs.items() if value is not None}


def _cpu_flags() -> str:
    """Return a digest of the CPU's feature flags in Linux, elsewhere the name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()[:16]
    return platform.processor() or platform.machine()
