"""The bundle: what a table's winners compile to, in one file beside the table.

A zip archive. Its first member, ``manifest.json``, names the table by its digest, what the machine
must be like, and every other member with its size and SHA-256. Those others are code, for the
device and for the host; nothing here runs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import platform
import re
import sysconfig
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.core.errors import BundleError
from warmup.core.files import replace_bytes
from warmup.core.runtime import Runtime

if TYPE_CHECKING:
    pass

BUNDLE_SUFFIX: Final = ".bundle"
_BUNDLE_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_MAX_MANIFEST: Final = 32 * 1024 * 1024
_MAX_MEMBERS: Final = 100_000
_MAX_BUNDLE_BYTES: Final = 1024**3
_MAX_NAME_LENGTH: Final = 256
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip archive can state
# No part of a member's name begins with a dot, so no name leads out of a folder.
_FILE_NAME: Final = re.compile(
    r"[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]*(/[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]*)*"
)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_UNREADABLE: Final = (
    *(OSError, EOFError, KeyError, ValueError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a bundle: its size in bytes, and its SHA-256 as hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself.

    ``table`` is the digest of the table that it was made from. What ``needs`` states must be so
    where it is used. ``members`` are its files by name, with ``/`` between folders.
    """

    table: str
    needs: Mapping[str, str]
    members: Mapping[str, Member]

    def differences(self, table: str, here: Mapping[str, str]) -> tuple[str, ...]:
        """Return what forbids its use with the table of that digest on a machine that is *here*."""
        asked = {"table": self.table, **self.needs}
        found = {"table": table, **here}
        return tuple(
            f"{name}: bundle {asked.get(name, 'none')}, here {found.get(name, 'none')}"
            for name in dict.fromkeys((*asked, *found))
            if asked.get(name) != found.get(name)
        )


def write_bundle(
    path: Path, table: str, needs: Mapping[str, str], files: Mapping[str, bytes]
) -> Manifest:
    """Put a bundle of *files* at *path*, and return its manifest. Equal files give equal bytes.

    A reader of *path* sees the old file or the new one.

    Raises:
        BundleError: it cannot be written, or could not be read again.
    """
    members = {
        name: Member(len(content), hashlib.sha256(content).hexdigest())
        for name, content in sorted(files.items())
    }
    stated = {
        "format": _BUNDLE_FORMAT,
        "table": table,
        "needs": dict(sorted(needs.items())),
        "members": {name: [one.size, one.sha256] for name, one in members.items()},
    }
    manifest = _manifest_of(stated, path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry(_MANIFEST), json.dumps(stated, indent=1))
        for name in members:
            archive.writestr(_entry(name), files[name])
    try:
        replace_bytes(path, buffer.getvalue())
    except OSError as error:
        raise BundleError(str(path), f"it cannot be written ({error.strerror})") from error
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the bundle at *path*.

    Raises:
        BundleError: there is none, or nothing that this warmup reads.
    """
    with _open(path) as archive:
        return _read_manifest(archive, path)


def read_members(
    path: Path, look: Callable[[Manifest], object] = lambda _manifest: None
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each member of the bundle at *path*, as its manifest says.

    *look* is given that manifest before anything else is read, and may raise.

    Raises:
        BundleError: it is damaged, or nothing that this warmup reads.
    """
    with _open(path) as archive:
        manifest = _read_manifest(archive, path)
        look(manifest)
        for name, member in manifest.members.items():
            content = _read(archive, path, name, member.size)
            if (len(content), hashlib.sha256(content).hexdigest()) != (member.size, member.sha256):
                raise BundleError(str(path), f"{name} is not what the manifest says")
            yield name, content


@contextlib.contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise BundleError(str(path), "there is no such file") from None
    except _UNREADABLE as error:
        raise BundleError(str(path), f"it cannot be read ({error})") from error
    with archive:
        yield archive


def _read_manifest(archive: zipfile.ZipFile, path: Path) -> Manifest:
    text = _read(archive, path, _MANIFEST, _MAX_MANIFEST)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(str(path), f"its manifest is not JSON ({error})") from error
    manifest = _manifest_of(value, path)
    if sorted(archive.namelist()) != sorted((_MANIFEST, *manifest.members)):
        raise BundleError(str(path), "it holds something else than its manifest names")
    return manifest


def _read(archive: zipfile.ZipFile, path: Path, name: str, limit: int) -> bytes:
    """Return a member; of one that is larger than *limit* bytes no more is unpacked."""
    try:
        with archive.open(name) as file:
            content = file.read(limit + 1)
    except _UNREADABLE as error:
        raise BundleError(str(path), f"{name} cannot be read ({error})") from error
    if len(content) > limit:
        raise BundleError(str(path), f"{name} is larger than {limit} bytes")
    return content


def _manifest_of(value: Any, path: Path) -> Manifest:
    """Return the manifest that *value*, JSON that may be anything, states."""

    def check(is_so: bool, said: str) -> None:  # noqa: FBT001  reads as a sentence
        if not is_so:
            raise BundleError(str(path), f"its manifest {said}")

    names = {"format", "table", "needs", "members"}
    check(type(value) is dict and "format" in value, "is not one of a bundle")
    check(value["format"] == _BUNDLE_FORMAT, f"has another format than {_BUNDLE_FORMAT}")
    check(value.keys() == names, f"does not have {', '.join(sorted(names))} alone")
    table, needs, members = value["table"], value["needs"], value["members"]
    check(type(table) is str and _SHA256.fullmatch(table) is not None, "names no table")
    check(type(needs) is dict and type(members) is dict, "has lists in place of objects")
    check(len(members) <= _MAX_MEMBERS, f"names more than {_MAX_MEMBERS} files")
    words = [word for pair in needs.items() for word in pair]
    check(all(_is_word(word) for word in words), "needs what is not a word")
    found: dict[str, Member] = {}
    for name, one in members.items():
        check(_FILE_NAME.fullmatch(name) is not None, f"names a file {name!r}")
        check(type(one) is list and [type(part) for part in one] == [int, str], f"garbles {name}")
        size, digest = one
        check(0 <= size <= _MAX_BUNDLE_BYTES, f"gives {name} {size} bytes")
        check(_SHA256.fullmatch(digest) is not None, f"gives {name} no SHA-256")
        found[name] = Member(size, digest)
    total = sum(member.size for member in found.values())
    check(total <= _MAX_BUNDLE_BYTES, f"names {total} bytes, more than {_MAX_BUNDLE_BYTES}")
    return Manifest(table, needs, found)


def _is_word(word: object) -> bool:
    return type(word) is str and len(word) <= _MAX_NAME_LENGTH and word.isprintable()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def needs_of(runtime: Runtime) -> dict[str, str]:
    """Return what compiled code needs to be the same: the device, torch, Triton, CUDA and Python.

    Not the driver, which runs what was made under an older one, nor what is about speed alone.
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
        needs["device.flags"] = _cpu_flags()  # the C++ compiler takes all that this CPU can do
    else:
        needs["cuda"] = runtime.cuda
    return {name: str(value) for name, value in needs.items() if value is not None}


def _cpu_flags() -> str:
    """Return a digest of what the CPU says that it can do, as Linux tells it, or its name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()[:16]
    return platform.processor() or platform.machine()
