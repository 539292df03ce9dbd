"""`Manifest` and the bundle file: the compiled winners of a table, in a file beside the table.

A zip archive. Its member ``manifest.json`` has the digest of the table, the facts of the
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
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from warmup.core.device import Runtime
from warmup.core.errors import BundleError, TableFormatError
from warmup.core.files import open_regular, replace_bytes
from warmup.core.strict_json import check_texts, read_json
from warmup.core.text import first_line, printable, problem_in

BUNDLE_SUFFIX: Final = ".bundle"
_BUNDLE_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
# A JSON value takes up to 34 times its text in memory ({"":0}), so 4 MiB take at most 150 MB.
_MAX_MANIFEST: Final = 4 * 1024 * 1024
_MAX_MEMBERS: Final = 16_384
_MAX_NAME: Final = 256
_PIECE: Final = 256 * 1024
_MAX_BUNDLE_BYTES: Final = 1024**3
_SHOWN_DIGEST: Final = 12
_SHOWN: Final = 100  # characters of an invalid value in a message
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can have
# No part of a member's name starts with a dot, so that no member is unpacked outside its folder.
_FILE_NAME: Final = re.compile(
    r"[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]*(/[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]*)*"
)
# What zipfile raises for a damaged archive.
_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(KeyError, NotImplementedError, OverflowError, RuntimeError, ValueError),
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
    _archive: zipfile.ZipFile

    def members(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name of each member, and its content in pieces, to be read before the next.

        A BundleError behind the last piece: the member differs from the manifest.
        """
        for name, member in self.manifest.members.items():
            yield name, _pieces_of(self._archive, name, member.size, self.path, member.sha256)


def _pieces_of(
    archive: zipfile.ZipFile, name: str, size: int, path: Path, sha256: str = ""
) -> Iterator[bytes]:
    digest = hashlib.sha256()
    try:
        with archive.open(name) as file:
            while piece := file.read(_PIECE):
                size -= len(piece)
                if size < 0:
                    break
                digest.update(piece)
                yield piece
    except _DAMAGED as error:
        said = printable(first_line(error))[:_SHOWN]
        raise BundleError(str(path), f"{name} is damaged ({said})") from error
    if size < 0:
        raise BundleError(str(path), f"{name} is larger than it may be")
    if sha256 and digest.hexdigest() != sha256:
        raise BundleError(str(path), f"{name} is not what the manifest says")


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
        raise BundleError(str(path), f"it cannot be read ({problem_in(error)})") from error
    with file:
        if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
            raise BundleError(str(path), "every user of this machine can write it")
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGED as error:
            reason = "it is no zip archive as `warmup build` writes it, or it is cut off"
            raise BundleError(str(path), reason) from error
        text = b"".join(_pieces_of(archive, _MANIFEST, _MAX_MANIFEST, path))
        manifest = _manifest_of(text, path)
        if sorted(archive.namelist()) != sorted((_MANIFEST, *manifest.members)):
            raise BundleError(str(path), "its files are not those that its manifest names")
        yield OpenBundle(path, manifest, archive)


def _manifest_of(text: bytes, path: Path) -> Manifest:
    try:
        json, _ = read_json(text, _ManifestJson, str(path))
        check_texts(json.needs, str(path), "needs")
    except TableFormatError as error:
        at = f" at {error.pointer[:_SHOWN]}" if error.pointer else ""
        raise BundleError(str(path), f"its manifest is damaged{at}: {error.reason}") from None
    for name in json.members:
        if len(name) > _MAX_NAME or _FILE_NAME.fullmatch(name) is None:
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
