"""Fixtures for tests that run inductor in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked, talk_forked

ROOT = Path(__file__).resolve().parents[2]


def _environment(folder: Path, **environment: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        **environment,
    }


@pytest.fixture(scope="session")
def run_program() -> Callable[..., Any]:
    """``run_program(folder, *words, **environment)``: the JSON that a Python process printed."""

    # The caches of the process are in *folder*; it must succeed.
    def run(folder: Path, *words: str, **environment: str) -> Any:
        done = run_forked(*words, env=_environment(folder, **environment), cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


@contextmanager
def _talk(*words: str, env: Mapping[str, str], cwd: Path) -> Iterator[Callable[[str], str]]:
    with subprocess.Popen(
        [sys.executable, *words],
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:

        def ask(line: str) -> str:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(line + "\n")
            running.stdin.flush()
            return running.stdout.readline()

        yield ask


@contextmanager
def _conversation(
    program: str, folder: Path, *, is_forked: bool = True, **environment: str
) -> Iterator[Callable[..., dict[str, Any]]]:
    start = talk_forked if is_forked else _talk
    env = _environment(folder, **environment)
    with start(str(ROOT / "tests/programs" / program), env=env, cwd=ROOT) as talk:

        def ask(**case: Any) -> dict[str, Any]:
            line = talk(json.dumps(case))
            assert line, "the program ended; its stderr is above"
            result: dict[str, Any] = json.loads(line)
            return result

        yield ask


Conversation = Callable[..., AbstractContextManager[Callable[..., dict[str, Any]]]]


@pytest.fixture(scope="session")
def conversation() -> Conversation:
    """Start a program of tests/programs with its caches in a folder, and end it after the test."""
    # Yields ``ask(**case)``: it sends a case to the program and returns the printed result. A
    # program that changes what inductor reads on import is not forked.
    return _conversation


@pytest.fixture(scope="module")
def ask(
    request: pytest.FixtureRequest,
    conversation: Conversation,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., dict[str, Any]]]:
    """``ask(**case)``: the answer to a case of the program that the file names as ``PROGRAM``."""
    answers: dict[str, dict[str, Any]] = {}
    is_forked = getattr(request.module, "IS_FORKED", True)
    folder = tmp_path_factory.mktemp("caches")
    with conversation(request.module.PROGRAM, folder, is_forked=is_forked) as talk:

        def ask_once(**case: Any) -> dict[str, Any]:
            spelled = json.dumps(case, sort_keys=True)
            if spelled not in answers:
                answers[spelled] = talk(**case)
            return answers[spelled]

        yield ask_once
