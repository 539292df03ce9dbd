"""Bundles with real compiles on CPU: each start is a forked process with empty caches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.table.store import read, write

ROOT = Path(__file__).resolve().parents[2]
BATCHED = f"{ROOT / 'tests' / 'programs' / 'models' / 'batched.py'}:Batched"
SERVE = str(ROOT / "tests" / "programs" / "serve_bundle.py")


def run(caches: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in *cwd*, its caches in *caches*."""
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
    return run_forked(*words, env={**os.environ, "PYTHONPATH": str(ROOT), **inductor}, cwd=cwd)


def serve(folder: Path, bundled: Path) -> dict[str, Any]:
    """Serve the table in *bundled* with its bundle, from caches in *folder*."""
    done = run(folder, bundled, SERVE, BATCHED, "t.json", "t.bundle", "8")
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(folder: Path, bundled: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `warmup check` on the table in *bundled*, from caches in *folder*."""
    return run(folder, bundled, "-m", "warmup", "check", "t.json", "--device", "cpu", *words)


def test_a_bundled_start_compiles_nothing(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The build says how much is in it; kernels and graph come from it, with eager's outputs."""
    folder, said = bundled
    assert (said["bundle"]["path"], said["bundle"]["kernels"] > 0) == ("t.bundle", True)
    assert said["bundle"]["size"] == (folder / "t.bundle").stat().st_size
    assert said["bundle"]["graphs"] > 0
    served = serve(tmp_path, folder)
    assert (served["refused"], served["compiled"]) == (None, [])
    assert (served["from_cache"], served["misses"]) == (1, 0)
    assert served["error"] < 1e-5


@pytest.mark.long
def test_a_start_goes_on_without_a_bundle_of_another_table(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """It says why it is not used, and compiles instead."""
    for name in ("t.json", "t.bundle"):
        shutil.copy(bundled[0] / name, tmp_path)
    table = read(tmp_path / "t.json")
    older = replace(table.provenance, created="2026-01-02T03:04:05Z")
    write(tmp_path / "t.json", replace(table, provenance=older))
    found = serve(tmp_path, tmp_path)
    assert found["refused"].startswith("table: bundle ")
    assert len(found["compiled"]) > 0
    assert (found["from_cache"], found["misses"]) == (0, 0)
    assert found["error"] < 1e-5


@pytest.mark.long
def test_a_check_primes_from_the_bundle(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """It says what was unpacked, and that nothing was compiled besides."""
    words = ("--bundle", "t.bundle", "--prime", "--model", BATCHED, "--seqlens", "8")
    done = check(tmp_path, bundled[0], *words)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("bundle    ")]
    assert "t.bundle: " in line
    assert line.endswith("; 0 kernels compiled that it lacks")


@pytest.mark.long
def test_a_check_of_a_bundle_that_does_not_fit_is_code_11(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """One line on stderr says why; priming goes on without it."""
    (tmp_path / "bad.bundle").write_bytes(b"")
    for more in ((), ("--prime", "--model", BATCHED, "--seqlens", "8")):
        done = check(tmp_path, bundled[0], "--bundle", str(tmp_path / "bad.bundle"), *more)
        assert done.returncode == 11, more
        assert "bad.bundle" in done.stderr, more
        assert "it is no zip archive as" in done.stderr, more
        assert ("primed    1 of 1 buckets" in done.stdout) is bool(more), more


@pytest.mark.long
def test_a_check_of_a_bundle_that_fits_is_code_0(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Nothing is unpacked for it."""
    done = check(tmp_path, bundled[0], "--bundle", "t.bundle")
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.rglob("*.so")) == []
