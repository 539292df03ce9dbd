"""The benchmark programs on CPU: real processes, started as `warmup compare` starts its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from warmup.diagnostics.misses import read_misses

pytestmark = pytest.mark.long

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


def test_drawn_pad_problems_are_a_document_that_a_build_reads(tmp_path: Path) -> None:
    """As many different unaligned products as asked for, the same ones for the same seed."""
    program = str(ROOT / "docs/benchmarks/pad_problems.py")
    for name, seed in (("first", "3"), ("same", "3"), ("other", "4")):
        words = (f"{name}.json", "--samples", "30", "--seed", seed, "--dtypes", "f16,f32")
        done = subprocess.run(
            [sys.executable, program, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    first, same, other = (
        [problem.key for problem in read_misses(tmp_path / f"{name}.json")]
        for name in ("first", "same", "other")
    )
    assert first == same
    assert first != other
    assert len(set(first)) == 30
    for key in first:
        alignment = 8 if " f16 " in key else 4
        sizes = [int(size) for size in re.findall(r" [mnk]=(\d+)", key)]
        assert len(sizes) == 3
        assert any(size % alignment for size in sizes)
