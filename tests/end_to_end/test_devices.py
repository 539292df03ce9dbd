"""`warmup build --devices` with real workers on a CPU: two processes that take turns to measure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.table.store import read

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
LINEAR = "m=16 n=96 k=64 f32 a=row b=packed out=f32 fp32=ieee | epilogue"
BMM = "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
PACKED = f"packed_linear {LINEAR}=none"
UNKNOWN = f"packed_linear {LINEAR}=frobnicate"
ALONE = ("--set", "fused_top_k=0")  # how a row is measured is not the matter
Built = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A build of three problems on two workers, of which one cannot be rebuilt: exit code 1."""
    folder = tmp_path_factory.mktemp("devices")
    problems = [
        {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 1}
        for key in (BMM, UNKNOWN, PACKED)
    ]
    document = {"schema": 1, "digests": [], "problems": problems}
    (folder / "misses.json").write_text(json.dumps(document))
    words = ("build", "--problems", "misses.json", "--devices", "cpu,cpu", "--out", "t.json")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    environment["PYTHONPATH"] = str(ROOT)
    done = run_forked("-m", "warmup", *words, "--json", *ALONE, env=environment, cwd=folder)
    assert done.returncode == 1, done.stderr[-4000:]
    return folder, json.loads(done.stdout)


def test_real_workers_tune_what_a_build_on_one_device_does(spread: Built) -> None:
    """Each problem has its row, and the one that cannot be rebuilt has its reason."""
    folder, report = spread
    assert read(folder / "t.json").rows.keys() == {BMM, PACKED}
    assert "frobnicate is unknown" in report["not_rebuilt"][UNKNOWN]
    assert {problem["key"] for problem in report["problems"]} == {BMM, PACKED}


def test_the_report_has_each_device(spread: Built) -> None:
    """It counts the problems of the device, and has its time of the control problem."""
    (device,) = spread[1]["devices"]
    assert (device["name"], device["problems"], device["left_out"]) == ("cpu", 3, "")
    assert device["control_us"] > 0
