"""Fixtures of the tests that look at inductor in processes of their own."""

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
def run_program() -> Callable[..., Any]:
    """``run_program(folder, *words, **environment)``: what Python printed, read as JSON.

    Its caches are in *folder*; it must succeed.
    """

    def run(folder: Path, *words: str, **environment: str) -> Any:
        done = subprocess.run(
            [sys.executable, *words],
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": str(ROOT),
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                "TRITON_CACHE_DIR": str(folder / "triton"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run
