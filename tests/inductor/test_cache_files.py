"""Kernels taken out of caches and put into others, compiled for a GPU that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from warmup.inductor.cache_files import add_to_caches, read_graphs, read_kernels

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `programs/reload_kernel.py` found, with the Triton cache of its second place set."""
    folder = tmp_path_factory.mktemp("reload")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "programs" / "reload_kernel.py"), str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "other"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names = ("was_there", "placed", "besides", "kept", "sizes")
    return dict(zip(names, json.loads(done.stdout), strict=True))


def test_triton_finds_a_kernel_that_was_carried_over(reloaded: dict[str, Any]) -> None:
    """In another folder; what was not carried over it compiles."""
    assert reloaded["was_there"] == [False, True, False]


def test_what_is_there_already_is_not_placed_again(reloaded: dict[str, Any]) -> None:
    """A second unpacking writes nothing."""
    first, second = reloaded["placed"]
    assert first > 0
    assert second == 0


def test_what_is_compiled_besides_is_counted(reloaded: dict[str, Any]) -> None:
    """None after a carried kernel, one after another."""
    assert reloaded["besides"] == [0, 1]


def test_only_what_a_kernel_is_loaded_from_is_kept(reloaded: dict[str, Any]) -> None:
    """The code for the device, what describes it, and the list of both: not its sources."""
    assert reloaded["kept"] == ["cubin", "json", "json"]
    assert reloaded["sizes"]["bundle"] < reloaded["sizes"]["cache"]


def test_libraries_and_graphs_keep_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken from one cache folder is at the same place in the next."""
    first, other = tmp_path / "first", tmp_path / "other"
    for name in ("ab/cab.main.so", "fxgraph/cd/fcd/one", "aotautograd/ef/two", "ab/cab.main.cpp"):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_bytes(name.encode())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(other))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    taken = {**read_kernels(first, tmp_path / "triton"), **read_graphs(first)}
    assert add_to_caches(taken.items(), CPU) == 3
    found = {path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()}
    assert found == {"ab/cab.main.so", "fxgraph/cd/fcd/one", "aotautograd/ef/two"}


@pytest.mark.parametrize(
    "member",
    [
        ("notes/a", b""),
        ("triton", b""),
        ("triton/KEY/__grp__k.json", b"[]"),
        ("triton/KEY/__grp__k.json", b"{"),
    ],
)
def test_what_is_no_cache_file_is_not_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: tuple[str, bytes]
) -> None:
    """It is a ValueError, and nothing of it is left."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    with pytest.raises(ValueError, match=r"neither|group|Expecting"):
        add_to_caches([member], CPU)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
