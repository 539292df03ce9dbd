"""Kernels read from caches and added to other caches, compiled for a GPU that is not here."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from warmup.inductor.caches import (
    add_to_caches,
    empty_caches,
    kept_kernels,
    read_caches,
    read_graphs,
    read_kernels,
)

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reloaded(
    run_program: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The output of `programs/reload_kernel.py`, whose second Triton cache is a set folder."""
    folder = tmp_path_factory.mktemp("reload")
    program = str(ROOT / "tests" / "programs" / "reload_kernel.py")
    found = run_program(folder, program, str(folder), TRITON_CACHE_DIR=str(folder / "other"))
    names = ("was_there", "placed", "besides", "kept", "sizes")
    return dict(zip(names, found, strict=True))


def test_added_kernels_are_loaded_and_counted_apart(reloaded: dict[str, Any]) -> None:
    """Existing files are not written again, and kernels compiled since are counted.

    Device code, its description and the group file are kept; intermediate code is not.
    """
    assert reloaded["was_there"] == [False, True, False]
    first, second = reloaded["placed"]
    assert first > 0 == second
    assert reloaded["besides"] == [0, 1]
    assert reloaded["kept"] == ["cubin", "json", "json"]
    assert reloaded["sizes"]["bundle"] < reloaded["sizes"]["cache"]


def test_libraries_and_graphs_keep_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries and graphs get the same relative path in the other cache folder."""
    first, other = tmp_path / "first", tmp_path / "other"
    for name in ("ab/cab.main.so", "fxgraph/cd/fcd/one", "aotautograd/ef/two", "ab/cab.main.cpp"):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_bytes(name.encode())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(other))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    taken = {**read_kernels(first, tmp_path / "triton"), **read_graphs(first)}
    assert add_to_caches(((name, [taken[name]]) for name in taken), CPU) == 3
    found = {path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()}
    assert found == {"ab/cab.main.so", "fxgraph/cd/fcd/one", "aotautograd/ef/two"}


def test_a_member_that_is_no_cache_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is written, not even members before it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    group = "triton/KEY/__grp__k.json"
    for name, content in (
        ("notes/a", b""),
        ("triton", b""),
        (group, b"[]"),
        (group, b"{"),
        (group, b'{"child_paths":' + b"[" * 200_000),
        (group, b" " * (1024 * 1024 + 1)),
    ):
        with pytest.raises(ValueError, match=r"neither|group|Expecting"):
            add_to_caches([("fxgraph/ab/one", [b"1"]), (name, [content])], CPU)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], (name, content[:9])


def test_a_file_that_a_worker_still_writes_does_not_end_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of kernels that cannot be emptied, as when torch's worker writes into it, stays."""

    def refuse(path: Any, **_: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", refuse)
        with pytest.raises(OSError, match="not empty"), tempfile.TemporaryDirectory():
            pass
        with kept_kernels():
            pass


def test_libraries_of_earlier_compiles_are_found_and_packed_where_one_asks_for_them() -> None:
    """Inductor writes the source of a kernel beside its library; a probe is built only once."""
    kernel, probe = Path("ab/cab.main.so"), Path("cd/ccd.so")
    with kept_kernels(), empty_caches():
        for name in (kernel, probe):
            (Path(cache_dir()) / name).parent.mkdir(parents=True)
            (Path(cache_dir()) / name).write_bytes(b"code")
    for is_asked in (False, True):
        with kept_kernels(), empty_caches():
            if is_asked:
                (Path(cache_dir()) / kernel).with_suffix(".cpp").write_bytes(b"source")
            names = read_caches(CPU, graphs=True).keys()
        assert f"cpp/{probe}" in names, is_asked
        assert (f"cpp/{kernel}" in names) is is_asked, is_asked
