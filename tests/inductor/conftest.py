"""Fixtures for tests that run inductor in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _environment(folder: Path, **environment: str) -> dict[str, str]:
    return {
        **os.environ,
        **environment,
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


@pytest.fixture(scope="session")
def run_program() -> Callable[..., Any]:
    """``run_program(folder, *words, **environment)``: the JSON that a Python process printed.

    The caches of the process are in *folder*; it must succeed.
    """

    def run(folder: Path, *words: str, **environment: str) -> Any:
        done = subprocess.run(
            [sys.executable, *words],
            env=_environment(folder, **environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


@contextmanager
def _conversation(program: str, folder: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests/programs" / program)],
        env=_environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:

        def ask(**case: Any) -> dict[str, Any]:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(json.dumps(case) + "\n")
            running.stdin.flush()
            line = running.stdout.readline()
            assert line, "the program ended; its stderr is above"
            result: dict[str, Any] = json.loads(line)
            return result

        yield ask


Conversation = Callable[[str, Path], AbstractContextManager[Callable[..., dict[str, Any]]]]


@pytest.fixture(scope="session")
def conversation() -> Conversation:
    """Start a program of tests/programs with its caches in a folder, and end it after the test.

    Yields ``ask(**case)``: it sends a case to the program and returns the printed result.
    """
    return _conversation
