"""How candidates are measured on a GPU: what misbehaves loses, and what wins has its evidence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.method import L2, Launch
from warmup.measuring.clock import batch_of
from warmup.table.schema import Table
from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tests/programs/models/plain_linear.py:PlainLinear"
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


@pytest.fixture(scope="module")
def built(
    run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Table]:
    """A build in which library calls that misbehave are offered, and its table."""
    folder = tmp_path_factory.mktemp("bad")
    program, table = str(ROOT / "tests/programs/build_with_bad.py"), folder / "table.json"
    # Of 4096 rows the device works longer than the host takes to launch: only then does the host's
    # clock contradict a time that is too short.
    said = run(folder, program, MODEL, "4096", str(table), str(folder / "timings.json"), "15")
    return json.loads(said.splitlines()[-1]), read(table)


@pytest.mark.parametrize("name", REASONS)
def test_a_bad_candidate_is_rejected_for_what_it_does(
    built: tuple[dict[str, Any], Table], name: str
) -> None:
    (problem,) = built[0].values()
    found = {uid.rpartition("::")[2]: reason for uid, (reason, _) in problem["rejected"].items()}
    assert found[name] == REASONS[name]


def test_no_bad_candidate_wins(built: tuple[dict[str, Any], Table]) -> None:
    """The winner is none of them, and the row counts them."""
    (row,) = built[1].rows.values()
    assert "bad_" not in row.winner.uid
    assert row.evidence.failed >= len(REASONS)


def test_a_row_says_how_near_to_the_peaks_it_is(built: tuple[dict[str, Any], Table]) -> None:
    """On a known device a row has its rates, their share of the measured peaks, and its error."""
    (row,) = built[1].rows.values()
    evidence = row.evidence
    assert evidence.tflops is not None
    assert evidence.gbps is not None
    assert evidence.peak_share is not None
    assert 0 < evidence.peak_share <= 1.1
    assert evidence.error is not None
    assert 0 < evidence.error < 0.2


def test_a_row_says_how_sure_it_is(built: tuple[dict[str, Any], Table]) -> None:
    """A row has the spread of its winner and the band within which candidates tied."""
    (row,) = built[1].rows.values()
    assert row.evidence.spread is not None
    assert row.evidence.band is not None
    assert row.evidence.band >= built[1].policy.timing.near_tie


def test_a_split_product_is_measured_in_the_child(run: Callable[..., str], tmp_path: Path) -> None:
    """Where inductor offers to split K, those candidates have times, and one may win."""
    said = run(
        tmp_path,
        *("-m", "warmup", "build", "--model", "tests/programs/models/plain_linear.py:deep"),
        *("--input", "hidden_states=[seqlen,32768]:bf16", "--seqlens", "64"),
        *("--out", str(tmp_path / "table.json"), "--json"),
    )
    (problem,) = json.loads(said)["problems"]
    split = [one for one in problem["candidates"] if "decompose_k" in one["choice"]]
    assert split
    assert all(one["time_us"] for one in split)


def test_candidates_are_timed_as_the_mode_serves(built: tuple[dict[str, Any], Table]) -> None:
    """Without CUDA graphs in the mode, calls are launched one by one, from a cold L2."""
    timing = built[1].policy.timing
    assert (timing.launch, timing.l2) == ("eager", "cold")


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

    batch = batch_of(call, torch.device("cuda"), Launch.EAGER, L2.WARM, 1)
    batch.time()
    pause_s, made = 300e-6, 0  # far beyond what a busy host takes for a call
    batch.time()
    assert made > batch.calls
    made = 0
    batch.time()
    assert made == batch.calls
