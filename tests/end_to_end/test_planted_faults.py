"""Every hook raises: a compile goes on as torch alone would, and each exception is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
# Lowered for a GPU; with choices among kernels torch itself would measure where no hook works.
LOWERED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cuda_selections.py", {"case": "dilated"}),
    ("cuda_selections.py", {"case": "narrow", "tile": {"BLOCK_M": 128}}),
    ("cuda_reductions.py", {"case": "layer norm", "way": "looped", "on_miss": "fallback"}),
)

pytestmark = pytest.mark.long


def planted_in(said: str) -> dict[str, Any]:
    """Return what a program printed of its planted faults, each of which was reported.

    Those of outer hooks are not where strict serving refuses the first inner one.
    """
    found: dict[str, Any] = json.loads(said.partition("PLANTED ")[2])
    assert found.get("refused") or found["reached"].keys() == found["reported"].keys()
    return found


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_exception_of_a_hook_is_a_counted_miss(
    when: str, built: tuple[Path, Any], variables: dict[str, str], tmp_path: Path
) -> None:
    """Each hook that is reached is a miss ``internal``, and the output is right."""
    words = (str(PROGRAMS / "plant_faults.py"), str(built[0]), when)
    env = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    env["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    done = run_forked(*words, "fallback", env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    found = planted_in(done.stdout)
    assert len(found["reached"]) > 5
    assert found["misses"]["internal"] == sum(found["reached"].values())
    assert found["refused"] is None
    assert found["error"] < 1e-5
    refused = planted_in(run_forked(*words, "strict", env=env, cwd=ROOT).stdout)["refused"]
    assert "MissError: no row answers `hook " in refused


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_hooks_of_a_gpu_raise(when: str) -> None:
    """The code of kernels is generated all the same."""
    places: set[str] = set()
    for program, case in LOWERED:
        if when == "before" and "tile" in case:
            continue
        words = [sys.executable, str(PROGRAMS / "planted.py"), when, str(PROGRAMS / program)]
        done = subprocess.run(
            words, input=json.dumps(case), capture_output=True, text=True, check=True, cwd=ROOT
        )
        places |= planted_in(done.stdout)["reached"].keys()
        assert json.loads(done.stdout.partition("PLANTED ")[0])["error"] is None, case
    assert {"Reduction.num_splits", "InductorChoices.can_fuse", "Scheduler.codegen"} <= places
    assert {"TritonScheduling.create_kernel_choices", "GraphLowering.run_node"} <= places
