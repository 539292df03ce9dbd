"""The benchmark programs on CPU: real processes, started as `warmup compare` starts its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]


def test_a_mix_is_served_in_rounds_and_a_way_that_fails_is_left_out(tmp_path: Path) -> None:
    """Uncompiled, all requests are timed in every round; without its table `range` says why."""
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "docs/benchmarks/mix.py"), "--ways", "range,eager"),
            *("--model", f"{ROOT / 'examples/mlp.py'}:MLP", "--buckets", "8,16"),
            *("--distinct", "2", "--requests", "5", "--rounds", "3"),
            *("--table", "absent.json", "--results", "mix.json"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "mix.json").read_text())
    ranged, eager = document["runs"]
    assert "absent.json" in ranged["failed"]
    assert (len(document["mix"]), len(eager["total_us"])) == (5, 3)
    assert set(eager["us_by_size"]) == set(map(str, document["mix"]))
    assert (eager["benchmarks"], eager["recompiles"]) == (0, 0)
    assert document["runtime"]["torch"]


def test_the_readme_shows_what_the_commands_print() -> None:
    """Its terminal has the first lines of a build and of an audit, but for their numbers."""
    words = [sys.executable, str(ROOT / "docs/benchmarks/terminal.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
