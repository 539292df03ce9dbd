"""Bundle files: what is written is read back, and nothing that is not what it says it is."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import BundleError
from warmup.table.bundle_file import Manifest, Member, read_manifest, read_members, write_bundle

TABLE = "ab" * 32
NEEDS = {"torch": "2.13.0", "device.arch": "sm_90"}
FILES = {"triton/KEY/k.cubin": b"\x7fELF" * 100, "cpp/ab/cab.main.so": b"", "fxgraph/a/b/c": b"{}"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "t.bundle"
    write_bundle(path, TABLE, NEEDS, FILES)
    return path


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """Write the archive at *path* again, its manifest and its members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(manifest, members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, content in members.items():
            archive.writestr(name, content)


def test_what_is_written_is_read_back(bundle: Path) -> None:
    """The table, the needs and every file."""
    manifest = read_manifest(bundle)
    assert (manifest.table, dict(manifest.needs)) == (TABLE, NEEDS)
    assert dict(read_members(bundle)) == FILES


def test_equal_files_give_equal_bytes(bundle: Path) -> None:
    """In whatever order they come."""
    again = bundle.with_name("again.bundle")
    write_bundle(again, TABLE, dict(reversed(NEEDS.items())), dict(reversed(FILES.items())))
    assert again.read_bytes() == bundle.read_bytes()


@pytest.mark.parametrize(
    ("table", "here", "said"),
    [
        (TABLE, NEEDS, ()),
        ("cd" * 32, NEEDS, (f"table: bundle {TABLE}, here {'cd' * 32}",)),
        (TABLE, {**NEEDS, "torch": "2.14.0"}, ("torch: bundle 2.13.0, here 2.14.0",)),
        (TABLE, {"torch": "2.13.0"}, ("device.arch: bundle sm_90, here none",)),
        (TABLE, {**NEEDS, "cuda": "13.0"}, ("cuda: bundle none, here 13.0",)),
    ],
)
def test_differences_are_named(table: str, here: dict[str, str], said: tuple[str, ...]) -> None:
    """Another table, another value, and what only one side knows."""
    manifest = Manifest(TABLE, NEEDS, {"a": Member(0, TABLE)})
    assert manifest.differences(table, here) == said


def _set(**values: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda manifest, _: manifest.update(values)


def _swap(_: dict[str, Any], members: dict[str, bytes]) -> None:
    members["triton/KEY/k.cubin"] = b"\x7fELF" * 99 + b"\x7fELG"


def _grow(_: dict[str, Any], members: dict[str, bytes]) -> None:
    members["triton/KEY/k.cubin"] = bytes(10**7)


def _drop(_: dict[str, Any], members: dict[str, bytes]) -> None:
    del members["fxgraph/a/b/c"]


def _add(_: dict[str, Any], members: dict[str, bytes]) -> None:
    members["cpp/ab/more.so"] = b""


def _escape(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
    members["../out.so"] = members.pop("cpp/ab/cab.main.so")
    manifest["members"]["../out.so"] = manifest["members"].pop("cpp/ab/cab.main.so")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set(format=2), "another format than 1"),
        (_set(more=1), "does not have format, members, needs, table alone"),
        (_set(table="../../x"), "names no table"),
        (_set(needs=["torch"]), "lists in place of objects"),
        (_set(needs={"torch": "2\n3"}), "needs what is not a word"),
        (_set(members={"a": [1, 2]}), "garbles a"),
        (_set(members={"a": [True, TABLE]}), "garbles a"),
        (_set(members={"a": [-1, TABLE]}), "gives a -1 bytes"),
        (_set(members={"a": [2**30, TABLE], "b": [1, TABLE]}), "1073741825 bytes, more than"),
        (_set(members={"/etc/x": [1, TABLE]}), "names a file '/etc/x'"),
        (_set(members={"a/../b": [1, TABLE]}), "names a file 'a/../b'"),
        (_set(members={"a\\b": [1, TABLE]}), "names a file"),
        (_swap, "triton/KEY/k.cubin is not what the manifest says"),
        (_grow, "triton/KEY/k.cubin is larger than 400 bytes"),
        (_drop, "something else than its manifest names"),
        (_add, "something else than its manifest names"),
        (_escape, "names a file '../out.so'"),
    ],
)
def test_what_is_not_as_stated_is_refused(
    bundle: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None], said: str
) -> None:
    """With the file, the reason and what to do."""
    rewrite(bundle, change)
    with pytest.raises(BundleError) as caught:
        list(read_members(bundle))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{bundle}: ")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"{}", b"\x00" * 4096])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, cut or something else altogether."""
    path = tmp_path / "t.bundle"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="cannot be read"):
        read_manifest(path)


def test_a_damaged_archive_is_refused(bundle: Path) -> None:
    """Wherever one byte of a member is flipped, it is told before anything is given out."""
    raw = bytearray(bundle.read_bytes())
    raw[raw.index(b"cpp/ab/cab.main.so") + 20] ^= 0xFF
    bundle.write_bytes(raw)
    with pytest.raises(BundleError):
        list(read_members(bundle))


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(BundleError, match="there is no such file"):
        read_manifest(tmp_path / "none.bundle")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """As an error of the bundle, with the reason."""
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle(tmp_path / "no" / "t.bundle", TABLE, NEEDS, FILES)
