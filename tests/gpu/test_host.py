"""Where the host limits a bucket: measured, stored and printed, and what a build does about it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.device import CallCost
from warmup.core.method import Launch
from warmup.keys.registry import kind_of
from warmup.table.schema import Table
from warmup.table.store import read, write

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MODEL = "examples/mlp.py:MLP"
GRAPHS = """
import json, sys, torch, warmup
from examples.mlp import MLP
model = MLP().cuda().bfloat16().eval()
served = warmup.compile(
    model,
    dims={"hidden_states": {0: "seqlen"}},
    buckets="16",
    policy="pad",
    independent=("seqlen",),
    mode="reduce-overhead",
    table=sys.argv[1],
    on_miss="strict",
)
replays, replay = [0], torch.cuda.CUDAGraph.replay
def count(graph):
    replays[0] += 1
    replay(graph)
torch.cuda.CUDAGraph.replay = count
worst = 0.0
with torch.no_grad():
    for size in (5, 16, 9, 3, 16, 1):
        x = torch.randn(size, 256, dtype=torch.bfloat16, device="cuda")
        before = replays[0]
        found, expected = served(x).clone(), model(x)
        worst = max(worst, float((found - expected).norm() / expected.norm()))
report = served.handle.report()
print("RESULT", json.dumps({
    "error": worst,
    "replays of the last": replays[0] - before,
    "hits": len(report.hits),
    "misses": dict(report.misses),
    "uncovered": dict(report.uncovered),
    "artifacts": dict(served.report().artifacts),
    "outside": dict(served.report().outside),
}))
"""
Built = tuple[dict[str, Any], str, Table]


@pytest.fixture(scope="module")
def built(
    start: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """A build for calls launched one by one, of 16 rows: its document, stderr and table."""
    folder = tmp_path_factory.mktemp("host")
    path = folder / "table.json"
    words = ("--model", MODEL, "--seqlens", "16", "--dtype", "bf16", "--no-pad-weights")
    options = ("--launch", "eager", "--out", str(path), "--json")
    done = start(folder, "-m", "warmup", "build", *words, *options)
    assert done.returncode in {0, 4}, done.stderr[-6000:]  # 4: a noisy machine
    return json.loads(done.stdout), done.stderr, read(path)


def test_a_build_measures_what_a_call_costs(built: Built) -> None:
    """A small MLP of 16 rows takes the host longer than the device, and the build says so."""
    document, said, _ = built
    (bucket,) = document["buckets"]
    assert bucket["cost"]["host_us"] > bucket["cost"]["device_us"] > 0
    assert "the host limits it" in said


def test_the_table_keeps_what_a_call_costs(built: Built) -> None:
    """By the name of the model and the bucket, as the build printed it."""
    document, _, table = built
    ((name, cost),) = table.provenance.calls
    assert name == "mlp seqlen=16"
    assert cost == CallCost(**document["buckets"][0]["cost"])
    assert table.policy.timing.launch is Launch.EAGER


def test_candidates_have_the_hosts_times(built: Built) -> None:
    document, _, table = built
    gemms = {key: row for key, row in table.rows.items() if kind_of(key).name == "gemm"}
    assert gemms
    assert all(row.evidence.host_us for row in gemms.values())
    for problem in document["problems"]:
        if problem["key"] in gemms:
            assert sum(one["host_us"] is not None for one in problem["candidates"]) > 1


def test_no_winner_is_slower_for_host_and_device(built: Built) -> None:
    """No candidate that was timed as the row was is clearly faster for both than its winner."""
    document, _, table = built
    for problem in document["problems"]:
        evidence = table.rows[problem["key"]].evidence
        field = "fused_us" if evidence.scope == "fused" else "time_us"
        for one in problem["candidates"]:
            if one["host_us"] is not None and one[field] is not None and evidence.host_us:
                is_faster = one[field] < evidence.time_us * 0.8
                assert not (is_faster and one["host_us"] < evidence.host_us * 0.8)


def test_padded_calls_replay_graphs_under_a_table(
    run: Callable[..., str], built: Built, tmp_path: Path
) -> None:
    """Every row hits and nothing misses; the last calls replay one graph, and are right."""
    table = built[2]
    path = tmp_path / "table.json"
    write(path, table)
    found = json.loads(run(tmp_path, "-c", GRAPHS, str(path)).split("RESULT ")[1])
    assert found.pop("error") < 2e-2
    assert found == {
        "replays of the last": 1,
        "hits": len(table.rows),
        "misses": {},
        "uncovered": {},
        "artifacts": {"seqlen=16": 1},
        "outside": {},
    }
