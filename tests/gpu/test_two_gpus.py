"""Two ranks on two GPUs of one host, served from one table. Skipped where there are fewer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = ROOT / "tests/programs/serve_block.py"


@pytest.fixture(scope="module")
def table(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the small block, built on the first GPU by the command line."""
    path = tmp_path_factory.mktemp("table") / "block.json"
    run(
        tmp_path_factory.mktemp("caches"),
        *("-m", "warmup", "build", "--model", "examples/vision_block.py:small"),
        *("--input", "hidden_states=[seqlen,128]:bf16", "--seqlens", "64", "--out", str(path)),
    )
    return path


def launch(start: Start, folder: Path, table: Path, log: Path) -> tuple[list[dict[str, Any]], str]:
    """Serve on two ranks; return what each printed, by rank, and stderr."""
    case = {"table": str(table), "seqlens": [64], "mode": "default", "model": "small"}
    done = start(
        folder,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM)),
        json.dumps({**case, "uncovered": "forbid"}),
        WARMUP_AUDIT_LOG=str(log),
    )
    printed = [line.split("RESULT ")[1] for line in done.stdout.splitlines() if "RESULT " in line]
    return sorted(map(json.loads, printed), key=lambda result: result["rank"]), done.stderr


def test_both_ranks_make_the_same_choices_and_measure_nothing(
    start: Start, table: Path, tmp_path: Path
) -> None:
    """Each GPU serves from the table built on the first one: same digest, hits and choices."""
    log = tmp_path / "audit.jsonl"
    results, said = launch(start, tmp_path, table, log)
    assert [result["rank"] for result in results] == ["0", "1"], said[-3000:]
    assert results[0]["digest"] == results[1]["digest"]
    assert results[0]["hits"] == results[1]["hits"]
    for result in results:
        assert (result["benchmarker"], result["autotuner"]) == (0, 0)
        assert (result["misses"], result["collectives"]) == ({}, 0)
    audit = start(tmp_path, "-m", "warmup", "audit", str(log), "--fail-on", "miss,diverged,silent")
    assert audit.returncode == 0, audit.stdout
