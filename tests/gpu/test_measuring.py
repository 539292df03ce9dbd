"""How candidates are measured on a GPU: what misbehaves loses, and what wins has its evidence."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.device import CallCost
from warmup.core.rows import L2, Launch
from warmup.measuring.clock import batch_of
from warmup.table.store import read

torch = pytest.importorskip("torch")

Run = Callable[..., str]
REASONS = {
    "bad_zeros": "wrong",
    "bad_half": "unwritten",
    "bad_tile": "wrong",
    "bad_fault": "crashed",
    "bad_hang": "timed_out",
    "bad_exit": "crashed",
    "bad_shared_memory": "launch",
    "bad_memory": "out_of_memory",
    "bad_clock": "implausible",
}


def test_bad_candidates_are_rejected_and_the_winner_has_its_evidence(
    run: Run, tmp_path: Path
) -> None:
    """Each library call that misbehaves is rejected for what it does; the row counts them.

    The row has its rates, their share of the measured peaks, its error, its spread and the band
    within which candidates tied. Without CUDA graphs in the mode, calls are launched one by one.
    """
    path = tmp_path / "t.json"
    # Of 4096 rows the device works longer than the host takes to launch: only then does the host's
    # clock contradict a time that is too short.
    model = ("tests/programs/models/plain_linear.py:PlainLinear", 4096, path)
    words = ("tests/programs/build_with_bad.py", *model, tmp_path / "timings.json", 15)
    (problem,) = json.loads(run(tmp_path, *words).splitlines()[-1]).values()
    found = {uid.rpartition("::")[2]: reason for uid, (reason, _) in problem["rejected"].items()}
    assert {name: found[name] for name in REASONS} == REASONS
    table = read(path)
    (row,) = table.rows.values()
    evidence = row.evidence
    assert "bad_" not in row.winner.uid
    assert evidence.failed >= len(REASONS)
    assert None not in (evidence.tflops, evidence.gbps, evidence.spread)
    assert evidence.peak_share is not None
    assert 0 < evidence.peak_share <= 1.1
    assert evidence.error is not None
    assert 0 < evidence.error < 0.2
    assert evidence.band is not None
    assert evidence.band >= table.policy.timing.near_tie
    assert table.policy.timing.l2 == "cold"


def test_a_split_product_is_measured_in_the_child(
    build: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Where inductor offers to split K, those candidates have times, and one may win."""
    model = ("--model", "tests/programs/models/plain_linear.py:deep")
    words = ("--input", "hidden_states=[seqlen,32768]:bf16", "--seqlens", 64)
    (problem,) = build(tmp_path, *model, *words)["problems"]
    split = [one for one in problem["candidates"] if "decompose_k" in one["choice"]]
    assert split
    assert all(one["time_us"] for one in split)


def test_calls_run_again_where_the_host_became_slower_than_the_sleep_ahead_of_them() -> None:
    """Calls that the device began too early run again, and then the sleep is long enough."""
    pause_s, made = 0.0, 0
    ones = torch.ones(1024, device="cuda")

    def call(_number: int) -> None:
        nonlocal made
        made += 1
        ones.mul_(1.0)
        until = time.perf_counter() + pause_s
        while time.perf_counter() < until:
            pass

    batch = batch_of(call, torch.device("cuda"), L2.WARM, 1)
    batch.time()
    pause_s, made = 300e-6, 0  # far beyond what a busy host takes for a call
    batch.time()
    assert made > batch.calls
    made = 0
    batch.time()
    assert made == batch.calls


def test_calls_that_launch_nothing_have_no_time() -> None:
    """An empty CUDA graph takes a microsecond, which would beat every kernel."""
    device = torch.device("cuda", 0)
    with pytest.raises(RuntimeError, match="launches nothing on the stream"):
        batch_of(lambda _number: None, device, L2.COLD, 1, Launch.CUDAGRAPH)
    busy = torch.zeros(1 << 20, device=device)
    assert batch_of(lambda _number: busy.add_(1), device, L2.COLD, 1, Launch.CUDAGRAPH).time() > 0


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


def test_where_the_host_limits_a_bucket_is_measured_stored_and_printed(
    start: Callable[..., subprocess.CompletedProcess[str]],
    result_of: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """A small MLP of 16 rows, launched one by one, takes the host longer than the device.

    From the table padded calls replay one graph: every row hits, and they are right.
    """
    path = tmp_path / "t.json"
    words = ("--model", "examples/mlp.py:MLP", "--seqlens", 16, "--dtype", "bf16")
    options = ("--no-pad-weights", "--out", path, "--json")
    done = start(tmp_path, "-m", "warmup", "build", *words, *options)
    assert done.returncode in {0, 4}, done.stderr[-6000:]  # 4: a noisy machine
    document, table = json.loads(done.stdout), read(path)
    (bucket,) = document["buckets"]
    assert bucket["cost"]["host_us"] > bucket["cost"]["device_us"] > 0
    assert "the host limits it" in done.stderr
    assert table.provenance.calls == (("mlp seqlen=16", CallCost(**bucket["cost"])),)
    found = result_of(tmp_path / "graphs", "-c", GRAPHS, path)
    assert found.pop("error") < 2e-2
    assert found == {
        "replays of the last": 1,
        "hits": len(table.rows),
        "misses": {},
        "uncovered": {},
        "artifacts": {"seqlen=16": 1},
        "outside": {},
    }


def test_a_searched_launch_config_is_forced_and_no_less_exact(run: Run, tmp_path: Path) -> None:
    """Every kernel hits with the config of its row, and inductor measures nothing.

    Configs were tried that inductor lists nowhere, none of them wrote something wrong. Another
    order of a reduction is no larger error.
    """
    out = tmp_path / "race.json"
    run(tmp_path, "tests/programs/launch_race.py", out)
    for case, found in json.loads(out.read_text()).items():
        variants, rows = found["variants"], found["rows"]
        assert variants["table"]["events"] == {"lookup.hit": len(rows)}, case
        assert variants["table"]["benchmarks"] == {}, case
        assert variants["build"]["events"] == {"problem.tuned": len(rows)}, case
        for row in rows:
            assert "descent" in row["searched"], case
            assert row["rejected"].keys() <= {"launch", "compile"}, row["said"]
        errors = {name: one["error"] for name, one in variants.items()}
        assert errors["table"] <= 1.5 * errors["default"] + 1e-6, (case, errors)
