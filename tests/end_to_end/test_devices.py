"""`warmup build --devices` with real workers on a CPU: two processes that take turns to measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_processes import warmup_in

from warmup.table.store import read

pytestmark = pytest.mark.long

LINEAR = "m=16 n=96 k=64 f32 a=row b=packed out=f32 fp32=ieee | epilogue"
BMM = "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
PACKED = f"packed_linear {LINEAR}=none"
UNKNOWN = f"packed_linear {LINEAR}=frobnicate"
ALONE = ("--set", "fused_top_k=0")  # how a row is measured is not the matter


def test_real_workers_tune_what_a_build_on_one_device_does(tmp_path: Path) -> None:
    """Each problem has its row, and the one that cannot be rebuilt its reason: exit code 1.

    The report counts the problems of the device, and has its time of the control problem.
    """
    problems = [
        {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 1}
        for key in (BMM, UNKNOWN, PACKED)
    ]
    document = {"schema": 1, "digests": [], "problems": problems}
    (tmp_path / "misses.json").write_text(json.dumps(document))
    words = ("build", "--problems", "misses.json", "--devices", "cpu,cpu", "--out", "t.json")
    report = json.loads(warmup_in(tmp_path, *words, "--json", *ALONE, code=1).stdout)
    assert read(tmp_path / "t.json").rows.keys() == {BMM, PACKED}
    assert "frobnicate is unknown" in report["not_rebuilt"][UNKNOWN]
    assert {problem["key"] for problem in report["problems"]} == {BMM, PACKED}
    (device,) = report["devices"]
    assert (device["name"], device["problems"], device["left_out"]) == ("cpu", 3, "")
    assert device["control_us"] > 0
