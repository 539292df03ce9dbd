"""Bundles that nobody's build wrote: one typed error each, in bounded memory and linear time."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warmup.core.errors import BundleError
from warmup.table.bundle import open_bundle, write_bundle

TABLE = "ab" * 32
NAME = "triton/KEY/k.cubin"
MIB = 1024**2

# Prints how much the reading of a bundle has added to the memory, in MiB, and the error.
READ = """
import resource, sys
from pathlib import Path
from warmup.core.errors import BundleError
from warmup.table.bundle import open_bundle
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before, said = peak(), "read"
try:
    with open_bundle(Path(sys.argv[1])) as bundle:
        for _, pieces in bundle.members():
            for _ in pieces:
                pass
except BundleError as error:
    said = error.reason
print(peak() - before, said)
"""


def read(path: Path) -> dict[str, bytes]:
    """Return the files in the bundle at *path*."""
    with open_bundle(path) as bundle:
        return {name: b"".join(pieces) for name, pieces in bundle.members()}


def manifest(**members: bytes) -> bytes:
    sizes = {name: [len(each), hashlib.sha256(each).hexdigest()] for name, each in members.items()}
    return json.dumps({"format": 1, "table": TABLE, "needs": {}, "members": sizes}).encode()


def zipped(
    content: bytes = b"x" * 1000,
    *,
    name: str = NAME,
    method: int = zipfile.ZIP_DEFLATED,
    change: Callable[[zipfile.ZipInfo], object] = lambda _entry: None,
) -> bytes:
    """Return an archive of the manifest and one member, as Python's zipfile writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", manifest(**{name: content}))
        entry = zipfile.ZipInfo(name)
        entry.compress_type = method
        change(entry)
        archive.writestr(entry, content)
    return buffer.getvalue()


def patched(raw: bytes, signature: bytes, offset: int, form: str, *values: int) -> bytes:
    """Return *raw* with *values* in the last record of that *signature*."""
    changed = bytearray(raw)
    struct.pack_into(form, changed, raw.rindex(signature) + offset, *values)
    return bytes(changed)


def _duplicated() -> bytes:
    buffer = io.BytesIO(zipped())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(NAME, b"x" * 1000)
    return buffer.getvalue()


def _overlapping() -> bytes:
    """Both entries of the directory have the local header of the first."""
    return patched(zipped(), b"PK\x01\x02", 42, "<I", 0)


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "lzma": (lambda: zipped(method=zipfile.ZIP_LZMA), "is compressed by method 14"),
    "bzip2": (lambda: zipped(method=zipfile.ZIP_BZIP2), "is compressed by method 12"),
    "duplicate": (_duplicated, "its files are not those that its manifest names"),
    "overlap": (_overlapping, "does not begin where the file before ends"),
    "parent": (lambda: zipped(name="../out"), "has the invalid file name '../out'"),
    "absolute": (lambda: zipped(name="/etc/out"), "has the invalid file name '/etc/out'"),
    "dots inside": (lambda: zipped(name="cpp/../../x"), "has the invalid file name"),
    "symlink": (
        lambda: zipped(change=lambda e: setattr(e, "external_attr", stat.S_IFLNK << 16)),
        "is no regular file",
    ),
    "extra field": (
        lambda: zipped(change=lambda e: setattr(e, "extra", b"\x01\x00\x04\x00abcd")),
        "has attributes that `warmup build` does not write",
    ),
    "comment": (lambda: zipped()[:-2] + b"\x01\x00x", "it is no zip archive"),
    "prefix": (lambda: b"#!/bin/sh\n" + zipped(), "its directory has another size"),
    "a million entries": (
        lambda: patched(zipped(), b"PK\x05\x06", 8, "<2H", 65535, 65535),
        "it has 65535 files, at most 16385",
    ),
    "4 GB declared": (
        lambda: patched(zipped(), b"PK\x01\x02", 24, "<I", 2**32 - 1),
        f"{NAME} has another size than its manifest says",
    ),
    "wrong local header": (
        lambda: patched(zipped(), b"PK\x03\x04", 22, "<I", 5),
        "differs from the directory",
    ),
    "nested manifest": (
        lambda: _with_manifest(b'{"format":' + b"[" * 100_000),
        "its manifest is damaged: nested too deeply",
    ),
    "huge number": (
        lambda: _with_manifest(manifest().replace(b'"needs": {}', b'"needs": ' + b"9" * 9999)),
        "its manifest is damaged at /needs: number out of range",
    ),
    "huge manifest": (
        lambda: _with_manifest(b"[" + b" " * (4 * MIB) + b"]"),
        "its manifest is larger than 4194304 bytes",
    ),
}


def _with_manifest(text: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", text)
    return buffer.getvalue()


def test_an_archive_that_build_does_not_write_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The error says what is wrong, in one short line."""
    for case, item in HOSTILE.items():
        tmp_path = tmp_path_factory.mktemp("case")
        make, message = item
        (tmp_path / "t.bundle").write_bytes(make())
        with pytest.raises(BundleError) as caught:
            read(tmp_path / "t.bundle")
        assert message in caught.value.reason, case
        assert len(caught.value.reason) < 200, case


def _bomb(declared: int) -> bytes:
    """Return a bundle whose member unpacks to 64 MiB, and is said to have *declared* bytes."""
    digest = hashlib.sha256(bytes(64 * MIB)).hexdigest()
    members = {NAME: [declared, digest]}
    text = json.dumps({"format": 1, "table": TABLE, "needs": {}, "members": members})
    raw = zipped(bytes(64 * MIB))
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as before, zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", text)
        archive.writestr(NAME, before.read(NAME), zipfile.ZIP_DEFLATED)
    changed = patched(buffer.getvalue(), b"PK\x01\x02", 24, "<I", declared)
    return patched(changed, b"PK\x03\x04", 22, "<I", declared)


def _of_many(value: str) -> bytes:
    """Return a manifest of 4 MiB made of *value*, as Python objects some 34 times that."""
    count = (4 * MIB - 100) // (len(value) + 1)
    return _with_manifest(f"[{','.join([value] * count)}]".encode())


def test_no_bundle_takes_more_than_300_mb(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Members are read in pieces, and the manifest is bounded by what its objects may take."""
    for case, (make, said) in {
        "64 MiB of zeros": (lambda: _bomb(64 * MIB), "read"),
        "bomb": (lambda: _bomb(1000), f"{NAME} is larger than 1000 bytes"),
        "objects": (lambda: _of_many('{"":0}'), "its manifest is damaged at /: expected an object"),
        "arrays": (lambda: _of_many("[]"), "its manifest is damaged at /: expected an object"),
        "zeros": (lambda: bytes(256 * MIB), "it is no zip archive as `warmup build` writes it, "),
    }.items():
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "t.bundle").write_bytes(make())
        done = subprocess.run(
            [sys.executable, "-c", READ, str(tmp_path / "t.bundle")],
            capture_output=True,
            text=True,
            check=True,
        )
        added, _, found = done.stdout.strip().partition(" ")
        assert found.startswith(said), case
        assert int(added) < 300, case


def test_a_member_is_read_in_pieces(tmp_path: Path) -> None:
    """Twice the content is twice the pieces, none larger than 256 KiB."""
    counts = []
    for size in (8 * MIB, 16 * MIB):
        write_bundle(tmp_path / "t.bundle", TABLE, {}, {NAME: bytes(size)})
        with open_bundle(tmp_path / "t.bundle") as bundle:
            lengths = [len(piece) for _, pieces in bundle.members() for piece in pieces]
        assert max(lengths) <= 256 * 1024
        counts.append(len(lengths))
    assert counts[1] < 2.2 * counts[0]


def test_a_bundle_that_is_replaced_is_read_as_it_was_checked(tmp_path: Path) -> None:
    """The file that was opened is read to its end, whatever its path names by then."""
    path, other = tmp_path / "t.bundle", tmp_path / "other.bundle"
    write_bundle(path, TABLE, {}, {NAME: b"checked"})
    write_bundle(other, TABLE, {}, {NAME: b"another"})
    with open_bundle(path) as bundle:
        other.replace(path)
        assert [b"".join(pieces) for _, pieces in bundle.members()] == [b"checked"]


def test_what_is_no_file_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """At once: a FIFO is not waited for, and a device is not read."""
    for kind in ("fifo", "folder", "device"):
        tmp_path = tmp_path_factory.mktemp("case")
        path = tmp_path / "t.bundle"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero")
        with pytest.raises(BundleError, match=r"it cannot be read \((it is no regular|Is a dir)"):
            read(path)


def _mutations(raw: bytes, count: int) -> Iterator[bytes]:
    """Yield *raw* with a few bytes changed, cut out or doubled, from a fixed seed."""
    chance = random.Random(20)  # noqa: S311  no secret
    for _ in range(count):
        changed = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(changed))
            kind = chance.randrange(4)
            if kind == 0:
                changed[start] = chance.randrange(256)
            elif kind == 1:
                changed[start] ^= 1 << chance.randrange(8)
            elif kind == 2:
                del changed[start : start + chance.randint(1, 40)]
            else:
                changed[start:start] = changed[start : start + chance.randint(1, 40)]
        yield bytes(changed)


def test_a_mutated_bundle_is_intact_or_refused(tmp_path: Path) -> None:
    """Of 3,000 mutations each is one BundleError, unless the files in it are what was written."""
    path = tmp_path / "t.bundle"
    files = {NAME: bytes(range(256)) * 4, "cpp/ab/cab.main.so": b"", "fxgraph/a/b/c": b"{}"}
    write_bundle(path, TABLE, {"torch": "2.13.0"}, files)
    raw, refused = path.read_bytes(), list[str]()
    for changed in _mutations(raw, 3000):
        path.write_bytes(changed)
        try:
            found = read(path)
        except BundleError as error:
            refused.append(str(error))
        else:
            assert found == files
    assert len(refused) > 2000
    assert all(text.isprintable() for text in refused)


def test_a_cut_stream_is_refused(tmp_path: Path) -> None:
    """A member whose compressed bytes end early, with headers that agree, is an error."""
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = engine.compress(b"y" * 5000) + engine.flush()
    half = packed[: len(packed) // 2]
    raw = zipped(half, method=zipfile.ZIP_STORED)
    text = manifest(**{NAME: b"y" * 5000})
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("manifest.json", text)
        archive.writestr(NAME, half)
    raw = whole.getvalue()
    for signature, offset in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        raw = patched(raw, signature, offset, "<H", zipfile.ZIP_DEFLATED)
        size_at = {b"PK\x01\x02": 24, b"PK\x03\x04": 22}[signature]
        raw = patched(raw, signature, size_at, "<I", 5000)
    (tmp_path / "t.bundle").write_bytes(raw)
    with pytest.raises(BundleError, match=r"is cut off|is damaged"):
        read(tmp_path / "t.bundle")
