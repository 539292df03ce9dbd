"""The loop closes: what serving missed is tuned without the model, and serving misses nothing.

Real compiles on CPU, each step in a forked process with empty caches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import PROGRAMS, Built, answer_of, python_in, warmup_in

from warmup.cli import main
from warmup.table.store import read, write

LINEAR = "n=96 k=64 bf16 a=row b=packed bias=1d out=bf16 | epilogue"
ALONE = ("--set", "fused_top_k=0")  # how a row is measured is not the matter
BATCHED = (
    "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=mul(f32[64,96])",
    "bmm batch=2 m=8 n=32 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none",
)
# On a CPU whose oneDNN has no bf16, inductor packs no weight in bf16.
PACKED = (
    f"linear_binary m=32 {LINEAR}=add(bf16[32,96]),relu",
    f"linear_unary m=32 {LINEAR}=swish,mul(2),to(f32)",
    f"linear_unary m=2..64 {LINEAR}=swish,mul(bf16[s,96])",
)
REBUILT = (*BATCHED, *(PACKED if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ()))
NOT_REBUILT = {
    "launch triton_poi_fused_mul x=16 args=*bf16 source=3f2a9c0d41b7e865": "needs the model",
    "mm m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none": "another key",
    "packed_linear m=16 n=96 k=64 f32 a=row b=packed out=f32 fp32=ieee"
    " | epilogue=frobnicate": "frobnicate is unknown",
    "mm (aten.mm.default)": "not a gemm key",
}


def serve(folder: Path, log: str, on_miss: str) -> Any:
    case = json.dumps({"table": "mlp.json", "seqlens": [16, 64], "on_miss": on_miss})
    program = str(PROGRAMS / "serve_mlp.py")
    return answer_of(python_in(folder, program, case, WARMUP_AUDIT_LOG=log).stdout)


def test_what_missed_is_tuned_and_then_nothing_misses(built: Built, tmp_path: Path) -> None:
    """Served with rows of bucket 16 alone, then completed from the audit, without the model."""
    table = read(built[0])
    of_16 = {key: row for key, row in table.rows.items() if " m=16 " in key}
    write(tmp_path / "mlp.json", replace(table, rows=of_16))
    first = serve(tmp_path, "first.jsonl", "fallback")
    warmup_in(tmp_path, "audit", "first.jsonl", "--misses-out", "misses.json")
    problems = json.loads((tmp_path / "misses.json").read_text())["problems"]
    assert {problem["key"] for problem in problems} == set(first["misses"])
    assert len(problems) == 2
    words = ("--problems", "misses.json", "--device", "cpu", "--out", "mlp.json", "--json")
    rebuilt = json.loads(warmup_in(tmp_path, "build", *words).stdout)
    assert {problem["key"] for problem in rebuilt["problems"]} == set(first["misses"])
    after = set(read(tmp_path / "mlp.json").rows)
    assert after == set(of_16) | set(first["misses"])
    second = serve(tmp_path, "second.jsonl", "strict")
    assert "error" not in second
    assert (second["misses"], set(second["hits"])) == ({}, after)


def write_misses(folder: Path, reasons: Mapping[str, str]) -> None:
    problems = [
        {
            "key": key,
            "kind": key.split()[0] if key.startswith("launch") else "gemm",
            "reason": reason,
            "count": 1,
        }
        for key, reason in reasons.items()
    ]
    document = {"schema": 1, "digests": [], "problems": problems}
    (folder / "misses.json").write_text(json.dumps(document))


def exit_code(folder: Path, *more: str) -> Any:
    """Return the exit code of a build that is refused: it measures nothing, and runs here."""
    words = ("--problems", str(folder / "misses.json"), "--out", str(folder / "t.json"))
    with pytest.raises(SystemExit) as stopped:
        main(["build", "--device", "cpu", *words, *more])
    return stopped.value.code


@pytest.mark.nightly
def test_what_can_be_rebuilt_asks_for_its_key(tmp_path: Path) -> None:
    """Post-ops, later epilogues, batches and dynamic dims; the others have their reasons.

    The exit code is 1 then. A second build tunes a problem that has a row only if the row could not
    be used. Problems that are measured otherwise than the table's rows do not join them.
    """
    words = ("build", "--problems", "misses.json", "--device", "cpu", "--out", "t.json", "--json")
    write_misses(tmp_path, dict.fromkeys((*REBUILT, *NOT_REBUILT), "not_in_table"))
    found = json.loads(warmup_in(tmp_path, *words, *ALONE, code=1).stdout)["not_rebuilt"]
    assert set(read(tmp_path / "t.json").rows) == set(REBUILT)
    assert found.keys() == NOT_REBUILT.keys()
    for key, reason in NOT_REBUILT.items():
        assert reason in found[key], key
    write_misses(tmp_path, {REBUILT[0]: "not_in_table", REBUILT[1]: "template_changed"})
    again = json.loads(warmup_in(tmp_path, *words, *ALONE).stdout)
    assert again["known"] == [REBUILT[0]]
    assert [problem["key"] for problem in again["problems"]] == [REBUILT[1]]
    before = (tmp_path / "t.json").read_text()
    assert exit_code(tmp_path, "--set", "backends=CPP") == 3
    assert (tmp_path / "t.json").read_text() == before


def test_nothing_rebuilt_and_no_table_is_an_error(tmp_path: Path) -> None:
    """Without any row there is no table to report, so that the reason is the error."""
    write_misses(tmp_path, {})
    assert (exit_code(tmp_path), (tmp_path / "t.json").exists()) == (3, False)
