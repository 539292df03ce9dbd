"""The program for products with few rows: its problems, and the published results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from warmup.diagnostics.misses import read_misses

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "docs/benchmarks/decode.py"
PUBLISHED = ROOT / "docs/benchmarks/results/decode-h100.json"
TIMES = ROOT / "docs/benchmarks/results/timings/h100-few-rows.jsonl.gz"


def run(*words: str) -> None:
    """Run a step of the program."""
    subprocess.run([sys.executable, str(PROGRAM), *words], check=True, capture_output=True)


def test_the_problems_are_a_misses_document(tmp_path: Path) -> None:
    """`warmup build --problems` takes all of them: eight layers in bf16, five in fp8."""
    run("problems", str(tmp_path / "misses.json"), "--rows", "1,8")
    keys = [one.key for one in read_misses(tmp_path / "misses.json")]
    assert len(keys) == 2 * 8 + 3 * 5
    assert len([key for key in keys if key.startswith("scaled_mm")]) == 15


def test_the_published_times_are_those_of_the_kept_candidates(tmp_path: Path) -> None:
    """The page's products and means come of the committed times of all candidates."""
    again = tmp_path / "again.json"
    run("results", str(again), "--timings", str(TIMES), "--ceiling", str(PUBLISHED))
    found, published = (json.loads(path.read_text()) for path in (again, PUBLISHED))
    assert (found["products"], found["means"]) == (published["products"], published["means"])
