"""Bundles with real compiles on CPU: each start is a forked process with empty caches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.table.store import read, write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BATCHED = f"{ROOT / 'tests' / 'programs' / 'models' / 'batched.py'}:Batched"
SERVE = str(ROOT / "tests" / "programs" / "serve_bundle.py")

RunOnce = Callable[..., tuple[Path, str]]


@pytest.fixture(scope="module")
def bundled(run_once: RunOnce, variables: dict[str, str]) -> tuple[Path, dict[str, Any]]:
    """A table of the batched product and its bundle, graphs included, and what the build said."""
    words = ("-m", "warmup", "build", "--json", "--device", "cpu", "--model", BATCHED)
    words += ("--seqlens", "8", "--out", "t.json", "--bundle-graphs", "default")
    folder, said = run_once("bundled", *words, **variables)
    return folder, json.loads(said)


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


@pytest.fixture(scope="module")
def served(
    bundled: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """A start with the bundle."""
    return serve(tmp_path_factory.mktemp("served"), bundled[0])


def test_a_build_writes_the_bundle_beside_the_table(bundled: tuple[Path, dict[str, Any]]) -> None:
    """And says how much is in it."""
    folder, said = bundled
    assert said["bundle"]["path"] == "t.bundle"
    assert said["bundle"]["size"] == (folder / "t.bundle").stat().st_size
    assert said["bundle"]["kernels"] > 0
    assert said["bundle"]["graphs"] > 0


def test_a_bundled_start_compiles_nothing(served: dict[str, Any]) -> None:
    """No kernel and no graph: both come from the bundle."""
    assert served["refused"] is None
    assert served["compiled"] == []
    assert served["from_cache"] == 1
    assert served["misses"] == 0


def test_a_bundled_start_agrees_with_eager(served: dict[str, Any]) -> None:
    """What the bundle holds computes what the model does."""
    assert served["error"] < 1e-5


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


def test_a_check_primes_from_the_bundle(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """It says what was unpacked, and that nothing was compiled besides."""
    words = ("--bundle", "t.bundle", "--prime", "--model", BATCHED, "--seqlens", "8")
    done = check(tmp_path, bundled[0], *words)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("bundle    ")]
    assert line.startswith("bundle    t.bundle: ")
    assert line.endswith("; 0 kernels compiled that it lacks")


@pytest.mark.parametrize("primes", [False, True])
def test_a_check_of_a_bundle_that_does_not_fit_is_code_11(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path, primes: bool
) -> None:
    """One line on stderr says why; priming goes on without it."""
    (tmp_path / "bad.bundle").write_bytes(b"")
    words = ["--bundle", str(tmp_path / "bad.bundle")]
    words += ["--prime", "--model", BATCHED, "--seqlens", "8"] if primes else []
    done = check(tmp_path, bundled[0], *words)
    assert done.returncode == 11
    assert "bad.bundle" in done.stderr
    assert "it is no zip archive as" in done.stderr
    assert ("primed    1 of 1 buckets" in done.stdout) is primes


def test_a_check_of_a_bundle_that_fits_is_code_0(
    bundled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Nothing is unpacked for it."""
    done = check(tmp_path, bundled[0], "--bundle", "t.bundle")
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.rglob("*.so")) == []
