"""Fixtures of the tests that need a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``start(folder, *command, **environment)``: run Python with the caches in *folder*."""

    def run(folder: Path, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        return subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **caches, "PYTHONPATH": path, **extra},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def run(start: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """``run(folder, *command)``: as `start`, must succeed; returns what was printed."""

    def run(folder: Path, *command: str) -> str:
        done = start(folder, *command)
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    return run
