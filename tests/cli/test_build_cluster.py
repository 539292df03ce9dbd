"""`warmup build --cluster`: what it refuses before anything connects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from warmup.serving.audit import encode_problems

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


def test_what_a_cluster_needs_is_said_in_a_sentence(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget that is no time, and Ray, an extra that is imported when a problem is tuned."""
    key = "mm m=16 n=16 k=16 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
    (tmp_path / "m.json").write_text(encode_problems({(key, "not_in_table"): 1}, ()))
    monkeypatch.setitem(sys.modules, "ray", None)
    for words, said in (
        (("--budget", "long"), "--budget 'long' is no time"),
        ((), "--cluster needs Ray"),
        ((), "inductor-warmup[ray]"),
    ):
        done = run_main("build", "--cluster", "auto", *PROBLEMS, *words)
        assert (done.returncode, said in " ".join(done.stderr.split())) == (3, True), words


def test_importing_the_build_imports_no_ray() -> None:
    """A machine without Ray can import everything else of the package."""
    code = "import sys, warmup.tuning.ray_build; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
