"""Fixtures of the tests that need a GPU; all of them are skipped without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def needs_gpu() -> None:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``start(folder, *command, **environment)``: run Python with the caches in *folder*."""

    # A bundle beside a table, whose graphs ask nothing, is taken where ``WARMUP_BUNDLE`` is empty.
    def run(
        folder: Path, *command: object, cwd: Path = ROOT, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        return subprocess.run(
            [sys.executable, *map(str, command)],
            env={**os.environ, **caches, "PYTHONPATH": path, "WARMUP_BUNDLE": "0", **extra},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def run(start: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """``run(folder, *command)``: as `start`, must succeed; returns what was printed."""

    def run(folder: Path, *command: object) -> str:
        done = start(folder, *command)
        assert done.returncode in {0, 4}, done.stderr[-6000:]  # 4: a noisy machine
        return done.stdout

    return run


@pytest.fixture(scope="session")
def result_of(run: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """``result_of(folder, *command)``: the JSON that the command printed behind RESULT."""

    def result(folder: Path, *command: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run(folder, *command).split("RESULT ")[1])
        return found

    return result


@pytest.fixture(scope="session")
def build(run: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """``build(folder, *words)``: the document of a build of the table t.json in *folder*."""

    def build(folder: Path, *words: object) -> dict[str, Any]:
        out = ("--out", folder / "t.json", "--json")
        document: dict[str, Any] = json.loads(run(folder, "-m", "warmup", "build", *words, *out))
        return document

    return build
