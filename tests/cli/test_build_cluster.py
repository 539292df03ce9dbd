"""`warmup build --cluster`: what it refuses before anything connects."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from warmup.core.errors import SettingsError
from warmup.serving.audit import encode_problems
from warmup.tuning.ray_build import build_on_cluster

RunMain = Callable[..., subprocess.CompletedProcess[str]]
PROBLEMS = ("--problems", "m.json", "--out", "t.json")


def test_what_does_not_go_with_a_cluster(run_main: RunMain) -> None:
    for words, code, said in (
        ((*PROBLEMS, "--dry-run"), 2, "--cluster cannot be combined with --dry-run"),
        (("--model", "m.py"), 2, "--cluster cannot be combined with --model"),
        ((*PROBLEMS, "--seqlens", "8"), 2, "--problems cannot be combined with --seqlens"),
        ((*PROBLEMS, "--set", "problem_limit=soon"), 3, "problem_limit 'soon' is no time"),
        (("--out", "t.json", "--", "true"), 2, "cannot be combined with --cluster"),
    ):
        done = run_main("build", "--cluster", "auto", *words)
        assert done.returncode == code, words
        assert said in " ".join(done.stderr.split()), words


@pytest.fixture
def misses(tmp_path: Path) -> Path:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"schema": 1, "digests": [], "problems": []}))
    return path


def test_a_budget_that_is_no_time_is_refused(misses: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--budget 'long' is no time"):
        build_on_cluster(misses, cluster="auto", out=tmp_path / "t.json", budget="long")


def test_without_ray_the_error_says_how_to_install_it(
    misses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is an extra, and is imported when there is a problem to tune."""
    key = "mm m=16 n=16 k=16 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
    misses.write_text(encode_problems({(key, "not_in_table"): 1}, ()))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"--cluster needs Ray.*inductor-warmup\[ray\]"):
        build_on_cluster(misses, cluster="auto", out=tmp_path / "t.json")


def test_importing_the_build_imports_no_ray() -> None:
    """A machine without Ray can import everything else of the package."""
    code = "import sys, warmup.tuning.ray_build; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
