"""Models of the zoo that are built in a fresh process, and served in another; caches are empty."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

Found = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def build_and_serve(
    variables: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Found, Found]]:
    """``build_and_serve(*names)``: by name what the build asked for, and what serving counted."""

    def run(*names: str) -> tuple[Found, Found]:
        folder, answers = tmp_path_factory.mktemp("zoo"), []
        for do in ("build", "serve"):
            caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / do), "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, str(ROOT / "tests/programs/zoo.py"), do, *names],
                env={**os.environ, **variables, **caches},
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            answers.append(json.loads(done.stdout.split("RESULT ")[1]))
        return answers[0], answers[1]

    return run


def check(built: Mapping[str, Any], served: Mapping[str, Any]) -> None:
    """Check that rows answer all that serving asks, and that nothing is measured."""
    assert built["asked"]
    assert (built["not_tuned"], built["distrusted"]) == ({}, {})
    assert sorted(served["hits"]) == built["asked"]
    assert (served["misses"], served["uncovered"], served["benchmarks"]) == ({}, {}, {})
    assert served["unused"] == []
    assert served["clean"]
    assert served["error"] < 0.03
