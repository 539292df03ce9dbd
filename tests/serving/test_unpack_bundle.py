"""Unpacking a bundle: used when it fits, refused with a reason when not, never an error."""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_runtime

from warmup.serving.unpack_bundle import UnpackedBundle, unpack
from warmup.table.bundle import Manifest, needs_of, write_bundle

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
    path = tmp_path / "t.bundle"
    write_bundle(path, TABLE, needs_of(make_runtime()), FILES)
    return path


def test_calls_compiled_ahead_by_an_earlier_warmup_are_not_used(
    tmp_path: Path, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the bundle is in the caches, a warning counts the calls, and no file has them."""
    path = tmp_path / "earlier.bundle"
    retired = {f"compiled/{'ab' * 32}.bin": b"code", f"compiled/{'cd' * 32}.json": b"{}"}
    write_bundle(path, TABLE, needs_of(make_runtime()), {**FILES, **retired})
    done = unpack(path, TABLE, make_runtime(), CPU)
    assert (done.kernels, done.graphs, done.retired, done.placed) == (1, 1, 2, 2)
    assert caplog.messages == [
        f"bundle {path}: 2 files with calls that were compiled ahead of time, which are not used"
    ]
    assert not [file for file in caches.rglob("*") if file.suffix in (".bin", ".json")]


def test_a_bundle_that_fits_is_in_the_caches(bundle: Path, caches: Path) -> None:
    done = unpack(bundle, TABLE, make_runtime(driver="999"), CPU)
    assert (done.refused, done.kernels, done.graphs, done.placed) == (None, 1, 1, 2)
    assert (caches / "ab" / "cab.main.so").read_bytes() == b"one"
    assert (caches / "fxgraph" / "cd" / "fcd" / "two").read_bytes() == b"two"


def test_what_does_not_fit_is_refused(bundle: Path, caches: Path) -> None:
    """Another machine or table: the reason names the difference; no file is unpacked."""
    changes: dict[str, dict[str, Any]] = {
        "torch: bundle 2.13.0, here 2.13.1": {"torch": "2.13.1"},
        "triton: bundle 3.7.0, here 3.8.0": {"triton": "3.8.0"},
        "cuda: bundle 13.0, here 12.9": {"cuda": "12.9"},
        "device.arch: bundle sm_90, here sm_100": {"arch": "sm_100"},
        f"table: bundle {TABLE}, here {'cd' * 32}": {},
    }
    for said, change in changes.items():
        table = TABLE if change else "cd" * 32
        assert unpack(bundle, table, make_runtime(**change), CPU).refused == said
    many = make_runtime(torch="1", triton="2", cuda="3", arch="sm_80")
    assert str(unpack(bundle, TABLE, many, CPU).refused).endswith(" and 1 more")
    assert not list(caches.glob("??/*"))


def test_a_bundle_that_cannot_be_trusted_is_refused(bundle: Path, caches: Path) -> None:
    """A file that every user can write, a damaged file, and a missing file."""
    bundle.chmod(0o666)
    said = "it is code, and every user can write the file"
    assert unpack(bundle, TABLE, make_runtime(), CPU).refused == said
    bundle.chmod(0o644)
    bundle.write_bytes(bundle.read_bytes()[:-30])
    said = "it is no zip archive as `warmup build` writes it, or it is cut off"
    assert unpack(bundle, TABLE, make_runtime(), CPU).refused == said
    bundle.unlink()
    assert unpack(bundle, TABLE, make_runtime(), CPU).refused == "there is no such file"
    assert not list(caches.glob("??/*"))


def test_caches_that_cannot_be_written_refuse_it(bundle: Path, caches: Path) -> None:
    caches.mkdir()
    (caches / "ab").write_bytes(b"")
    done = unpack(bundle, TABLE, make_runtime(), CPU)
    assert done.refused is not None
    assert done.refused.startswith("it cannot be unpacked (")


def test_a_malformed_member_refuses_the_whole_bundle(tmp_path: Path, caches: Path) -> None:
    """Serving goes on: no error, no file of the bundle in the caches, and none left behind."""
    for name, content in (
        ("triton/KEY/__grp__k.json", b'{"child_paths":' + b"[" * 200_000),
        ("triton/KEY/__grp__k.json", b"{}"),
        ("unknown/file", b""),
    ):
        path = tmp_path / "t.bundle"
        write_bundle(path, TABLE, needs_of(make_runtime()), {**FILES, name: content})
        done = unpack(path, TABLE, make_runtime(), CPU)
        assert str(done.refused).startswith("it cannot be unpacked ("), (name, content[:20])
        for folder in (caches, tmp_path / "triton"):
            assert [each for each in folder.rglob("*") if each.is_file()] == [], name
            assert list(folder.glob(".warmup-bundle-*")) == [], name


def test_no_file_is_in_the_caches_before_the_last_is_verified(tmp_path: Path, caches: Path) -> None:
    """A last member with another digest than the manifest's keeps the first from its place."""
    path = tmp_path / "t.bundle"
    write_bundle(path, TABLE, needs_of(make_runtime()), FILES)
    digest = hashlib.sha256(b"two").hexdigest()
    write_bundle(path, TABLE, needs_of(make_runtime()), {**FILES, "fxgraph/cd/fcd/two": b"owt"})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    text = members["manifest.json"].decode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        wrong = hashlib.sha256(b"owt").hexdigest()
        archive.writestr("manifest.json", text.replace(wrong, digest))
        for name in FILES:
            archive.writestr(name, members[name])
    done = unpack(path, TABLE, make_runtime(), CPU)
    assert done.refused == "fxgraph/cd/fcd/two is not what the manifest says"
    assert [each for each in caches.rglob("*") if each.is_file()] == []


def test_a_bundle_swapped_after_its_check_is_not_what_is_unpacked(
    bundle: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest fits, then another file takes the path: the files of the first are placed."""
    other = bundle.with_name("other.bundle")
    write_bundle(other, TABLE, needs_of(make_runtime()), dict.fromkeys(FILES, b"swapped"))
    differences = Manifest.differences

    def swap(manifest: Manifest, *args: Any) -> tuple[str, ...]:
        other.replace(bundle)
        return differences(manifest, *args)

    monkeypatch.setattr(Manifest, "differences", swap)
    assert unpack(bundle, TABLE, make_runtime(), CPU).refused is None
    assert (caches / "ab" / "cab.main.so").read_bytes() == b"one"


def test_caches_that_have_every_file_may_be_read_only(
    bundle: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written for a second start, and the bundle is still verified to its end."""
    unpack(bundle, TABLE, make_runtime(), CPU)

    def fail(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", fail)
    done = unpack(bundle, TABLE, make_runtime(), CPU)
    assert (done.refused, done.placed, done.kernels) == (None, 0, 1)
    assert list(caches.glob(".warmup-bundle-*")) == []


def test_what_a_killed_process_left_is_removed_after_a_day(bundle: Path, caches: Path) -> None:
    """A temporary folder of yesterday goes, one of just now may be in use."""
    old, new = caches / ".warmup-bundle-old", caches / ".warmup-bundle-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "0").write_bytes(b"")
    os.utime(old, (0, 0))
    unpack(bundle, TABLE, make_runtime(), CPU)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_refusal_is_a_warning_in_the_log(
    bundle: Path, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line with the file, the reason, and what happens instead."""
    del caches
    with caplog.at_level(logging.WARNING, logger="warmup"):
        unpack(bundle, TABLE, make_runtime(torch="2.14.0"), CPU)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"bundle {bundle} is not used: torch: bundle 2.13.0, here 2.14.0; "
        "kernels are compiled instead"
    )


def test_a_cpu_is_identified_by_its_flags() -> None:
    """Two CPUs with the same name may differ; a GPU is identified by its architecture."""
    on_cpu = needs_of(make_runtime(type="cpu"))
    assert "device.flags" in on_cpu
    assert "cuda" not in on_cpu
    assert "device.flags" not in needs_of(make_runtime())


def test_an_unpacked_bundle_prints_as_a_line() -> None:
    """The numbers of kernel and graph files, and how many were new."""
    done = UnpackedBundle(Path("t.bundle"), CPU, kernels=3, graphs=2, placed=4)
    assert str(done) == "t.bundle: 3 files of kernels, 2 of graphs, 4 new here"
