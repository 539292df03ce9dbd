"""Bundles: equal after writing and reading; what no build wrote is one error, in bounded memory."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from own_processes import peak_of

from warmup.core.errors import BundleError
from warmup.table.bundle import Manifest, Member, open_bundle, write_bundle

TABLE = "ab" * 32
NEEDS = {"torch": "2.13.0", "device.arch": "sm_90"}
NAME = "triton/KEY/k.cubin"
FILES = {"cpp/ab/cab.main.so": b"", "fxgraph/a/b/c": b"{}", NAME: b"\x7fELF" * 100}
MIB = 1024**2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.bundle"


def read(path: Path) -> dict[str, bytes]:
    with open_bundle(path) as bundle:
        return {name: b"".join(pieces) for name, pieces in bundle.members()}


def members_of(files: Mapping[str, bytes]) -> dict[str, list[Any]]:
    return {name: [len(each), hashlib.sha256(each).hexdigest()] for name, each in files.items()}


def zipped(files: Mapping[str, bytes] = FILES, *, text: bytes | None = None, **more: Any) -> bytes:
    """Return an archive as Python's zipfile writes it, with *more* in its manifest, or *text*."""
    manifest = {"format": 1, "table": TABLE, "needs": {}, "members": members_of(files), **more}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest) if text is None else text)
        for name, content in {} if text else files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def duplicated() -> bytes:
    buffer = io.BytesIO(zipped())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(NAME, FILES[NAME])
    return buffer.getvalue()


def with_members(files: Mapping[str, bytes]) -> bytes:
    return zipped(files, members=members_of(FILES))


SWAPPED = {**FILES, NAME: b"\x7fELF" * 99 + b"\x7fELG"}
NO_ZIP = "it is no zip archive"
OTHER_FILES = "its files are not those that its manifest names"
HOSTILE: list[tuple[Callable[[], bytes], str]] = [
    *((lambda raw=raw: raw, NO_ZIP) for raw in (b"", b"PK\x03\x04", b"{}", bytes(4096))),
    (lambda: zipped()[:-30], NO_ZIP),
    (lambda: zipped().replace(b"manifest.json", b"manifest.yaml"), "manifest.json is damaged"),
    (duplicated, OTHER_FILES),
    (lambda: zipped({"../out": b""}), "has the invalid file name '../out'"),
    (lambda: zipped({"/etc/out": b""}), "has the invalid file name '/etc/out'"),
    (lambda: zipped({"cpp/../../x": b""}), "has the invalid file name"),
    (lambda: zipped(members={"a\\b": [1, TABLE]}), "has the invalid file name"),
    (lambda: with_members(SWAPPED), f"{NAME} is not what the manifest says"),
    (lambda: with_members({**FILES, NAME: bytes(10**7)}), f"{NAME} is larger than it may be"),
    (lambda: with_members({NAME: FILES[NAME]}), OTHER_FILES),
    (lambda: with_members({**FILES, "cpp/more.so": b""}), OTHER_FILES),
    (lambda: zipped(format=2), "damaged at /format: expected an integer <= 1"),
    (lambda: zipped(more=1), "damaged at /more: unknown field"),
    (lambda: zipped(table="../../x"), "damaged at /table: expected a string matching regex"),
    (lambda: zipped(needs=["torch"]), "damaged at /needs: expected an object, found an array"),
    (lambda: zipped(needs={"torch": "2\n3"}), "at /needs/torch: expected printable characters"),
    (lambda: zipped(needs=10**999), "damaged at /needs: number out of range"),
    (lambda: zipped(members={"a": [1, 2]}), "damaged at /members/a/1: expected a string"),
    (lambda: zipped(members={"a": [True, TABLE]}), "at /members/a/0: expected an integer"),
    (lambda: zipped(members={"a": [-1, TABLE]}), "at /members/a/0: expected an integer >= 0"),
    (lambda: zipped(members={each: [2**30, TABLE] for each in "ab"}), "has 2147483648 bytes in"),
    (lambda: zipped(text=b'{"format":' + b"[" * 100_000), "is damaged: nested too deeply"),
    (lambda: zipped(text=b"[" + b" " * (4 * MIB) + b"]"), "manifest.json is larger than it may be"),
]


def test_a_written_bundle_is_read_back(path: Path) -> None:
    """In pieces; equal files give equal bytes."""
    files = {**FILES, "large": bytes(2 * MIB)}
    write_bundle(path, TABLE, NEEDS, files)
    with open_bundle(path) as bundle:
        assert (bundle.manifest.table, dict(bundle.manifest.needs)) == (TABLE, NEEDS)
        assert max(len(piece) for _, pieces in bundle.members() for piece in pieces) <= MIB // 4
    assert read(path) == files
    again = path.with_name("again.bundle")
    write_bundle(again, TABLE, dict(reversed(NEEDS.items())), dict(reversed(files.items())))
    assert again.read_bytes() == path.read_bytes()


def test_differences_are_named() -> None:
    """Another table, another value and a fact of one side only have a line each."""
    for table, here, differences in (
        (TABLE, NEEDS, ()),
        ("cd" * 32, NEEDS, (f"table: bundle {TABLE[:12]}, here {'cd' * 6}",)),
        (TABLE, {**NEEDS, "torch": "2.14.0"}, ("torch: bundle 2.13.0, here 2.14.0",)),
        (TABLE, {"torch": "2.13.0"}, ("device.arch: bundle sm_90, here none",)),
        (TABLE, {**NEEDS, "cuda": "13.0"}, ("cuda: bundle none, here 13.0",)),
    ):
        manifest = Manifest(TABLE, NEEDS, {"a": Member(0, TABLE)})
        assert manifest.differences(table, here) == differences


def test_an_archive_that_build_does_not_write_is_refused(path: Path) -> None:
    """The error says what is wrong, in one short line."""
    for make, message in HOSTILE:
        path.write_bytes(make())
        with pytest.raises(BundleError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert message in caught.value.reason
        assert len(caught.value.reason) < 200, message


def test_what_is_no_file_is_refused(path: Path) -> None:
    """At once: a FIFO is not waited for, and a device is not read."""
    fifo, folder, device = (path.with_name(name) for name in ("fifo", "folder", "device"))
    os.mkfifo(fifo)
    folder.mkdir()
    device.symlink_to("/dev/zero")
    for place in (fifo, folder, device):
        with pytest.raises(BundleError, match=r"it cannot be read \((it is no regular|Is a dir)"):
            read(place)
    with pytest.raises(BundleError, match="there is no such file"):
        read(path)
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle(path.parent / "no" / "t.bundle", TABLE, NEEDS, FILES)


def bomb(declared: int) -> bytes:
    """Return a bundle whose member unpacks to 64 MiB, and is said to have *declared* bytes."""
    zeros = {NAME: bytes(64 * MIB)}
    members = {NAME: [declared, members_of(zeros)[NAME][1]]}
    return zipped(zeros, members=members)


def many(value: str) -> bytes:
    """Return an archive whose manifest has 4 MiB of *value*, as Python objects 34 times that."""
    count = (4 * MIB - 100) // (len(value) + 1)
    return zipped(text=f"[{','.join([value] * count)}]".encode())


def test_no_bundle_takes_more_than_300_mb(path: Path) -> None:
    """Members are read in pieces, and the manifest is bounded by what its objects may take."""
    small = path.with_name("small.bundle")
    write_bundle(small, TABLE, {}, {})
    for case, (make, said) in {
        "64 MiB of zeros": (lambda: bomb(64 * MIB), "read"),
        "bomb": (lambda: bomb(1000), f"{NAME} is larger than it may be"),
        "objects": (lambda: many('{"":0}'), "its manifest is damaged at /: expected an object"),
        "arrays": (lambda: many("[]"), "its manifest is damaged at /: expected an object"),
        "zeros": (lambda: bytes(256 * MIB), NO_ZIP),
    }.items():
        path.write_bytes(make())
        added, found = peak_of("bundle", small, path)
        assert (said in found, added < 300) == (True, True), (case, found, added)


def mutations(raw: bytes, count: int) -> Iterator[bytes]:
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


def test_a_mutated_bundle_is_intact_or_refused(path: Path) -> None:
    """Of 3,000 mutations each is one BundleError, unless the files in it are what was written."""
    files = {**FILES, NAME: bytes(range(256)) * 4}
    write_bundle(path, TABLE, {"torch": "2.13.0"}, files)
    raw, refused = path.read_bytes(), list[str]()
    for changed in mutations(raw, 3000):
        path.write_bytes(changed)
        try:
            found = read(path)
        except BundleError as error:
            refused.append(str(error))
        else:
            assert found == files
    assert len(refused) > 2000
    assert all(text.isprintable() for text in refused)
