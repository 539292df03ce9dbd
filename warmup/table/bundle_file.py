"""`Manifest` and the bundle file: the compiled winners of a table, in one file beside the table.

A zip archive. Its first member, ``manifest.json``, has the digest of the table, the facts of the
machine that must be equal, and every other member with its size and SHA-256. The other members are
code for the device and the host. Nothing here runs code or unpacks files to disk.
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
from typing import Any, Final

from warmup.core.errors import BundleError
from warmup.core.files import replace_bytes
from warmup.core.runtime import Runtime

BUNDLE_SUFFIX: Final = ".bundle"
_BUNDLE_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_MAX_MANIFEST: Final = 32 * 1024 * 1024
_MAX_MEMBERS: Final = 100_000
_MAX_BUNDLE_BYTES: Final = 1024**3
_MAX_NAME_LENGTH: Final = 256
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can have
# No part of a member's name starts with a dot, so that no member is unpacked outside its folder.
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
    """The table, the requirements and the files of a bundle.

    ``table`` is the digest of the table that the bundle was made from. ``needs`` has the facts of
    the machine, by name, that must be equal where the bundle is used. ``members`` has the files by
    name, with ``/`` between folders.
    """

    table: str
    needs: Mapping[str, str]
    members: Mapping[str, Member]

    def differences(self, table: str, here: Mapping[str, str]) -> tuple[str, ...]:
        """Return why the bundle cannot be used with the table digest *table* and the facts *here*.

        A line for each difference; empty when the bundle fits.
        """
        expected = {"table": self.table, **self.needs}
        actual = {"table": table, **here}
        return tuple(
            f"{name}: bundle {expected.get(name, 'none')}, here {actual.get(name, 'none')}"
            for name in dict.fromkeys((*expected, *actual))
            if expected.get(name) != actual.get(name)
        )


def write_bundle(
    path: Path, table: str, needs: Mapping[str, str], files: Mapping[str, bytes]
) -> Manifest:
    """Write a bundle of *files* to *path*, and return its manifest.

    Equal arguments give equal bytes. A reader of *path* sees the old file or the new one, whole.

    Raises:
        BundleError: the file cannot be written, or `read_manifest` would refuse its manifest.
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
    manifest = _manifest_of(document, path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry(_MANIFEST), json.dumps(document, indent=1))
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
        BundleError: there is no bundle at *path*, or its manifest is invalid.
    """
    with _open(path) as archive:
        return _read_manifest(archive, path)


def read_members(
    path: Path, check: Callable[[Manifest], object] = lambda _manifest: None
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each member of the bundle at *path*.

    *check* is called with the manifest before any other member is read, and may raise.

    Raises:
        BundleError: the bundle is invalid, or a member differs from the manifest.
    """
    with _open(path) as archive:
        manifest = _read_manifest(archive, path)
        check(manifest)
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
        raise BundleError(str(path), "its files are not those that its manifest names")
    return manifest


def _read(archive: zipfile.ZipFile, path: Path, name: str, limit: int) -> bytes:
    """Return the content of a member; at most *limit* bytes and one more are unpacked."""
    try:
        with archive.open(name) as file:
            content = file.read(limit + 1)
    except _UNREADABLE as error:
        raise BundleError(str(path), f"{name} cannot be read ({error})") from error
    if len(content) > limit:
        raise BundleError(str(path), f"{name} is larger than {limit} bytes")
    return content


def _manifest_of(value: Any, path: Path) -> Manifest:
    """Return *value*, which may be any JSON value, as a manifest."""

    def check(is_valid: bool, problem: str) -> None:  # noqa: FBT001  reads as a sentence
        if not is_valid:
            raise BundleError(str(path), f"its manifest {problem}")

    names = {"format", "table", "needs", "members"}
    check(type(value) is dict and "format" in value, "is not that of a bundle")
    check(value["format"] == _BUNDLE_FORMAT, f"has another format than {_BUNDLE_FORMAT}")
    check(value.keys() == names, f"does not have {', '.join(sorted(names))} alone")
    table, needs, members = value["table"], value["needs"], value["members"]
    check(type(table) is str and _SHA256.fullmatch(table) is not None, "has no table digest")
    check(type(needs) is dict and type(members) is dict, "has lists in place of objects")
    check(len(members) <= _MAX_MEMBERS, f"names more than {_MAX_MEMBERS} files")
    texts = [text for pair in needs.items() for text in pair]
    check(all(_is_short(text) for text in texts), "has a need that is not a short printable text")
    checked: dict[str, Member] = {}
    for name, pair in members.items():
        check(_FILE_NAME.fullmatch(name) is not None, f"has the invalid file name {name!r}")
        is_pair = type(pair) is list and [type(part) for part in pair] == [int, str]
        check(is_pair, f"has no size and SHA-256 for {name}")
        size, digest = pair
        check(0 <= size <= _MAX_BUNDLE_BYTES, f"has {size} bytes for {name}")
        check(_SHA256.fullmatch(digest) is not None, f"has no SHA-256 for {name}")
        checked[name] = Member(size, digest)
    total = sum(member.size for member in checked.values())
    check(total <= _MAX_BUNDLE_BYTES, f"has {total} bytes in all, more than {_MAX_BUNDLE_BYTES}")
    return Manifest(table, needs, checked)


def _is_short(text: object) -> bool:
    return type(text) is str and len(text) <= _MAX_NAME_LENGTH and text.isprintable()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def needs_of(runtime: Runtime) -> dict[str, str]:
    """Return the facts that must be equal for compiled code to run: for `Manifest.needs`.

    Device, torch, Triton, CUDA and Python. Not the driver, which runs code from older drivers, nor
    the facts that change the speed alone.
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
