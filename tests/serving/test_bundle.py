"""Unpacking a bundle: used when it fits, refused with a reason when not, never an error."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_runtime

from warmup.core.files import OtherWriter
from warmup.serving.bundle import UnpackedBundle, name_of, pack, take
from warmup.table.bundle import Manifest, needs_of, open_bundle, write_bundle

TABLE = "ab" * 32
CPU = torch.device("cpu")
FILES = {"cpp/ab/cab.main.so": b"one", "fxgraph/cd/fcd/two": b"two"}


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "inductor"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return written(tmp_path / "t.bundle")


def written(path: Path, files: dict[str, bytes] | None = None) -> Path:
    write_bundle(path, TABLE, needs_of(make_runtime()), FILES | (files or {}))
    return path


def unpacked(path: Path, table: str = TABLE, **changes: Any) -> UnpackedBundle:
    done = take(str(path), (), table, make_runtime(**changes), CPU)
    assert done is not None
    return done


def beside(*names: str, folder: Path, said: str = "", table: str = TABLE) -> Any:
    """Take the bundle beside the tables *names* in *folder*, which nothing or *said* names."""
    tables = [folder / f"{name}.json" for name in names]
    return take(said, tables, table, make_runtime(), CPU)


def files_in(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


def test_a_bundle_that_fits_is_in_the_caches(
    bundle: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary folder of a process killed yesterday goes; caches that have all may be read-only.

    A CPU is identified by its flags, a GPU by its architecture: the driver does not matter.
    """
    old, new = caches / ".warmup-bundle-old", caches / ".warmup-bundle-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "0").write_bytes(b"")
    os.utime(old, (0, 0))
    done = unpacked(bundle, driver="999")
    assert (old.exists(), new.exists()) == (False, True)
    assert (done.refused, str(done)) == (
        None,
        f"{bundle}: 1 file of kernels, 1 of graphs, 2 new here",
    )
    assert (caches / "ab" / "cab.main.so").read_bytes() == b"one"
    assert (caches / "fxgraph" / "cd" / "fcd" / "two").read_bytes() == b"two"

    def fail(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", fail)
    again = unpacked(bundle)
    assert (again.refused, again.placed, again.kernels) == (None, 0, 1)
    assert ("device.flags" in needs_of(make_runtime(type="cpu"))) is True
    assert "device.flags" not in needs_of(make_runtime())


def test_the_bundle_beside_the_table_is_taken_where_nobody_else_can_change_it(
    bundle: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name; False, and 0 in the variable, take none. A named one may have more writers.

    Only the file beside the one table that is installed: a union of tables has another digest.
    """
    folder = bundle.parent
    for no_name, wanted in (("", True), (name_of(False), False)):
        done = beside("t", folder=folder, said=no_name)
        assert (done is not None and done.refused is None) is wanted, no_name
    for variable, name in (("0", "0"), ("", ""), ("t.bundle", str(Path("t.bundle").absolute()))):
        monkeypatch.setenv("WARMUP_BUNDLE", variable)
        assert name_of(None) == name, variable
    assert beside("other", folder=folder) is None
    assert beside(folder=folder) is None
    union = beside("t", "other", folder=folder, table="cd" * 32)
    assert union.refused == "2 tables are installed together, and it fits one of them"
    writers = (OtherWriter("group 7 can write the file"),)
    monkeypatch.setattr("warmup.serving.bundle.other_writers", lambda _: writers)
    refused = beside("t", folder=folder).refused
    assert refused.startswith("it is code, and group 7 can write the file; name it with bundle=")
    assert unpacked(bundle).refused is None


def test_a_later_build_keeps_the_kernels_of_other_buckets(bundle: Path) -> None:
    """And the graphs, where the table is the same; nothing that another machine made."""
    files, table, runtime = {"cpp/new.so": b"3"}, bundle.with_suffix(".json"), make_runtime()
    for digest, here, names in (
        (TABLE, runtime, {*FILES, *files}),
        ("cd" * 32, runtime, {"cpp/ab/cab.main.so", *files}),
        ("cd" * 32, make_runtime(torch="2.14.0"), {*files}),
    ):
        packed = pack(table, digest, here, files, 0.0)
        with open_bundle(bundle) as found:
            assert (set(found.manifest.members), found.manifest.table) == (names, digest)
        assert packed.kernels + packed.graphs == len(names)


def test_what_does_not_fit_is_refused(
    bundle: Path, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another machine or table: a warning names the difference; no file is unpacked."""
    changes: dict[str, dict[str, Any]] = {
        "torch: bundle 2.13.0, here 2.13.1": {"torch": "2.13.1"},
        "triton: bundle 3.7.0, here 3.8.0": {"triton": "3.8.0"},
        "cuda: bundle 13.0, here 12.9": {"cuda": "12.9"},
        "device.arch: bundle sm_90, here sm_100": {"arch": "sm_100"},
        f"table: bundle {'ab' * 6}, here {'cd' * 6}": {"table": "cd" * 32},
    }
    for said, change in changes.items():
        caplog.clear()
        assert unpacked(bundle, **change).refused == said
        assert caplog.messages == [
            f"bundle {bundle} is not used: {said}; kernels are compiled instead"
        ]
    many = unpacked(bundle, torch="1", triton="2", cuda="3", arch="sm_80")
    assert str(many.refused).endswith(" and 1 more")
    assert files_in(caches) == []


def test_a_bundle_that_cannot_be_trusted_is_refused(bundle: Path, caches: Path) -> None:
    bundle.chmod(0o666)
    assert unpacked(bundle).refused == "it is code, and every user can write the file"
    bundle.chmod(0o644)
    whole = bundle.read_bytes()
    bundle.write_bytes(whole[:-30])
    said = "it is no zip archive as `warmup build` writes it, or it is cut off"
    assert unpacked(bundle).refused == said
    bundle.unlink()
    assert unpacked(bundle).refused == "there is no such file"
    bundle.write_bytes(whole)
    caches.mkdir(exist_ok=True)
    (caches / "ab").write_bytes(b"")
    assert str(unpacked(bundle).refused).startswith("it cannot be unpacked (")


def test_a_malformed_member_refuses_the_whole_bundle(tmp_path: Path, caches: Path) -> None:
    """Serving goes on: no error, no file of the bundle in the caches, and none left behind."""
    for name, content in (
        ("triton/KEY/__grp__k.json", b'{"child_paths":' + b"[" * 200_000),
        ("triton/KEY/__grp__k.json", b"{}"),
        ("unknown/file", b""),
    ):
        done = unpacked(written(tmp_path / "t.bundle", {name: content}))
        assert str(done.refused).startswith("it cannot be unpacked ("), (name, content[:20])
        for folder in (caches, tmp_path / "triton"):
            assert files_in(folder) == [], name
            assert list(folder.glob(".warmup-bundle-*")) == [], name


def test_no_file_is_in_the_caches_before_the_last_is_verified(tmp_path: Path, caches: Path) -> None:
    """A last member with another digest than the manifest's keeps the first from its place."""
    path = written(tmp_path / "t.bundle", {"fxgraph/cd/fcd/two": b"owt"})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    own, other = (hashlib.sha256(text).hexdigest().encode() for text in (b"owt", b"two"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", members["manifest.json"].replace(own, other))
        for name in FILES:
            archive.writestr(name, members[name])
    done = unpacked(path)
    assert done.refused == "fxgraph/cd/fcd/two is not what the manifest says"
    assert files_in(caches) == []


def test_a_bundle_swapped_after_its_check_is_not_what_is_unpacked(
    bundle: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest fits, then another file takes the path: the files of the first are placed."""
    other = written(bundle.with_name("other.bundle"), dict.fromkeys(FILES, b"swapped"))
    differences = Manifest.differences

    def swap(manifest: Manifest, *args: Any) -> tuple[str, ...]:
        other.replace(bundle)
        return differences(manifest, *args)

    monkeypatch.setattr(Manifest, "differences", swap)
    assert unpacked(bundle).refused is None
    assert (caches / "ab" / "cab.main.so").read_bytes() == b"one"
