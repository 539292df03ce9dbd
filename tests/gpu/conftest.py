"""Fixtures of the tests that need a GPU."""

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
        assert done.returncode in {0, 4}, done.stderr[-6000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def built(run: Callable[..., str]) -> Callable[..., Path]:
    """``built(folder, model, seqlen)``: the table of *model* for one size, built in *folder*."""

    def build(folder: Path, model: str, seqlen: int) -> Path:
        out = folder / "table.json"
        words = ("--model", model, "--seqlens", str(seqlen), "--out", str(out))
        run(folder, "-m", "warmup", "build", *words)
        return out

    return build


@pytest.fixture(scope="session")
def serve_reductions(run: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """``serve_reductions(folder, model, seqlen, table, on_miss)``: what its program printed."""

    def serve(folder: Path, *words: object) -> dict[str, Any]:
        program = str(ROOT / "tests/programs/serve_reductions.py")
        out = run(folder, program, *map(str, words))
        found: dict[str, Any] = json.loads(out.split("RESULT ")[1])
        return found

    return serve
