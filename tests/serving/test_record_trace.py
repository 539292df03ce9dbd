"""`warmup profile` from the recording to the report, on this machine's CPU with a real model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked
from own_processes import run_python
from sample_tables import make_table
from typer.testing import CliRunner

from warmup.bench.trace import RECORDED_CALLS, Trace, read_trace
from warmup.cli.app import app
from warmup.core.errors import SettingsError
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.table.schema import Table
from warmup.table.store import write

pytestmark = pytest.mark.long

Profiled = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
MODEL = """
from torch import nn, randn
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)
    def forward(self, x):
        return self.down(self.up(x).relu())
def example_inputs(seqlen):
    return randn(seqlen, 256)
"""


@pytest.fixture(scope="module")
def recorded(inherited: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A trace of two linears in two buckets, recorded by the command, and its report."""
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    model = path.with_name("two.py")
    model.write_text(MODEL)
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(path.with_name("inductor")), "PYTHONPATH": str(ROOT)}
    done = run_forked(
        *("-m", "warmup", "profile", "--model", str(model), "--seqlens", "4,16"),
        *("--out", str(path), "--device", "cpu", "--json"),
        env={**os.environ, **caches},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout)


@pytest.fixture(scope="module")
def trace(recorded: tuple[Path, Any]) -> Trace:
    return read_trace(recorded[0])


@pytest.fixture(scope="module")
def table(recorded: tuple[Path, Any]) -> tuple[Path, Table]:
    """A table with a row for each matmul of the bucket of 16 rows, half as fast as the trace."""
    path, document = recorded
    (bucket,) = (each for each in document["buckets"] if each["bucket"] == "seqlen=16")
    rows = {}
    for kernel in bucket["kernels"]:
        if kernel["keys"]:
            us = kernel["median_us"] * 2
            evidence = Evidence(
                time_us=us, library_us=us, runner_up=None, runner_up_us=None, tried=1
            )
            rows[kernel["keys"][0]] = Row(Winner(Family.EXTERN, "aten::addmm"), evidence)
    made = make_table(rows)
    made = replace(made, provenance=replace(made.provenance, peaks=None))
    write(path.with_name("table.json"), made)
    return path.with_name("table.json"), made


@pytest.fixture
def profiled(recorded: tuple[Path, Any], table: Any) -> Profiled:
    """``profiled("--json")``: the finished `warmup profile` of the trace with the table."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = run_python(
            *("-m", "warmup", "profile", str(recorded[0]), "--table", str(table[0]), *options)
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_all_of_the_time_of_each_bucket_is_attributed(
    trace: Trace, recorded: tuple[Path, Any]
) -> None:
    """Every operator and kernel of the calls is in the plan, and has a reason without a row.

    Each matmul has 2 m n k operations, whichever kernel ran it.
    """
    buckets = ("seqlen=4", "seqlen=16")
    assert [mark.name for mark in trace.iterations] == [
        name for name in buckets for _ in range(RECORDED_CALLS)
    ]
    assert trace.plan is not None
    for bucket, (plan,) in trace.plan.plans.items():
        ran = {event.graph and event.graph.name for event in trace.events if event.bucket == bucket}
        assert ran == {plan.graph}
    shares = recorded[1]["shares"]
    assert (shares["unknown"], sum(shares.values())) == (0, pytest.approx(1))
    assert shares["no table"] > 0
    for bucket, rows in zip(recorded[1]["buckets"], (4, 16), strict=True):
        assert {kernel["known_by"] for kernel in bucket["kernels"]} == {"plan"}
        flops = [kernel["flops"] for kernel in bucket["kernels"] if kernel["keys"]]
        assert flops == [2 * rows * 256 * 1024] * 2


def test_rows_are_joined_with_their_times(profiled: Profiled, table: tuple[Path, Table]) -> None:
    """A kernel of a row has the row's time, and counts as drifted at half of it.

    Matmuls of the bucket without rows are listed with their device time.
    """
    document = json.loads(profiled("--json").stdout)
    kernels = {
        kernel["keys"][0]: kernel
        for bucket in document["buckets"]
        for kernel in bucket["kernels"]
        if kernel["winner"]
    }
    assert set(kernels) == set(table[1].rows) == set(document["drifted"])
    for key, kernel in kernels.items():
        assert kernel["row_us"] == table[1].rows[key].evidence.time_us
        assert kernel["ratio"] == pytest.approx(0.5)
    assert document["missed_us"]
    assert all(" m=4 " in key and us > 0 for key, us in document["missed_us"].items())


def test_the_text_has_80_columns(profiled: Profiled) -> None:
    text = profiled().stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    assert f"seqlen=4: {RECORDED_CALLS} calls of" in text
    assert "worth building" in text


def test_a_trace_does_not_differ_from_itself(recorded: tuple[Path, Any]) -> None:
    path = str(recorded[0])
    done = run_python("-m", "warmup", "profile", path, path, "--json")
    assert {(each["ratio"], each["is_certain"]) for each in json.loads(done.stdout)} == {
        (1.0, False)
    }


def test_what_cannot_be_profiled_is_an_error() -> None:
    for options, reason in (
        (("a.json", "b.json", "c.json"), "3 traces"),
        (("a.json", "--model", "m.py"), "a trace and --model"),
        (("--model", "m.py"), "has no file"),
        (("missing.json",), "missing.json"),
    ):
        result = CliRunner().invoke(app, ["profile", *options])
        assert isinstance(result.exception, SettingsError), options
        assert reason in str(result.exception), options
