"""Bundle files: equal after writing and reading, and refused when they contradict the manifest."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import BundleError
from warmup.table.bundle import Manifest, Member, open_bundle, write_bundle

TABLE = "ab" * 32
NEEDS = {"torch": "2.13.0", "device.arch": "sm_90"}
FILES = {"triton/KEY/k.cubin": b"\x7fELF" * 100, "cpp/ab/cab.main.so": b"", "fxgraph/a/b/c": b"{}"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "t.bundle"
    write_bundle(path, TABLE, NEEDS, FILES)
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Return the files in the bundle at *path*."""
    with open_bundle(path) as bundle:
        return {name: b"".join(pieces) for name, pieces in bundle.members()}


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """Write the archive at *path* again with its manifest and members changed by *change*."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(manifest, members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_written_bundle_is_read_back(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    assert (manifest.table, dict(manifest.needs)) == (TABLE, NEEDS)
    assert contents(bundle) == FILES


def test_equal_files_give_equal_bytes(bundle: Path) -> None:
    again = bundle.with_name("again.bundle")
    write_bundle(again, TABLE, dict(reversed(NEEDS.items())), dict(reversed(FILES.items())))
    assert again.read_bytes() == bundle.read_bytes()


def test_differences_are_named() -> None:
    """Another table, another value and a fact of one side only have a line each."""
    for table, here, differences in (
        (TABLE, NEEDS, ()),
        ("cd" * 32, NEEDS, (f"table: bundle {TABLE}, here {'cd' * 32}",)),
        (TABLE, {**NEEDS, "torch": "2.14.0"}, ("torch: bundle 2.13.0, here 2.14.0",)),
        (TABLE, {"torch": "2.13.0"}, ("device.arch: bundle sm_90, here none",)),
        (TABLE, {**NEEDS, "cuda": "13.0"}, ("cuda: bundle none, here 13.0",)),
    ):
        manifest = Manifest(TABLE, NEEDS, {"a": Member(0, TABLE)})
        assert manifest.differences(table, here) == differences


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
    ("change", "message"),
    [
        (_set(format=2), "damaged at /format: expected an integer <= 1"),
        (_set(more=1), "damaged at /more: unknown field"),
        (_set(table="../../x"), "damaged at /table: expected a string matching regex"),
        (_set(needs=["torch"]), "damaged at /needs: expected an object, found an array"),
        (_set(needs={"torch": "2\n3"}), "damaged at /needs/torch: expected printable characters"),
        (_set(members={"a": [1, 2]}), "damaged at /members/a/1: expected a string"),
        (_set(members={"a": [True, TABLE]}), "damaged at /members/a/0: expected an integer"),
        (_set(members={"a": [-1, TABLE]}), "damaged at /members/a/0: expected an integer >= 0"),
        (_set(members={"a": [2**30, TABLE], "b": [1, TABLE]}), "has 1073741825 bytes in all"),
        (_set(members={"/etc/x": [1, TABLE]}), "has the invalid file name '/etc/x'"),
        (_set(members={"a/../b": [1, TABLE]}), "has the invalid file name 'a/../b'"),
        (_set(members={"a\\b": [1, TABLE]}), "has the invalid file name"),
        (_swap, "triton/KEY/k.cubin is not what the manifest says"),
        (_grow, "triton/KEY/k.cubin has another size than its manifest says"),
        (_drop, "its files are not those that its manifest names"),
        (_add, "its files are not those that its manifest names"),
        (_escape, "has the invalid file name '../out.so'"),
    ],
)
def test_a_file_that_contradicts_its_manifest_is_refused(
    bundle: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None], message: str
) -> None:
    rewrite(bundle, change)
    with pytest.raises(BundleError) as caught:
        contents(bundle)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{bundle}: ")


def test_a_file_that_is_no_archive_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An empty file, a cut one and a file of another format cannot be read."""
    for content in (b"", b"PK\x03\x04", b"{}", b"\x00" * 4096):
        tmp_path = tmp_path_factory.mktemp("case")
        path = tmp_path / "t.bundle"
        path.write_bytes(content)
        with pytest.raises(BundleError, match="it is no zip archive"):
            contents(path)


def test_a_damaged_archive_is_refused(bundle: Path) -> None:
    raw = bytearray(bundle.read_bytes())
    raw[raw.index(b"cpp/ab/cab.main.so") + 20] ^= 0xFF
    bundle.write_bytes(raw)
    with pytest.raises(BundleError):
        contents(bundle)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no such file"):
        contents(tmp_path / "none.bundle")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle(tmp_path / "no" / "t.bundle", TABLE, NEEDS, FILES)
