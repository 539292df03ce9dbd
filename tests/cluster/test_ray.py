"""Builds on a real Ray cluster of this machine, each node a process, whose parts are killed.

The workers measure nothing, except in the last test: see `fake_device_worker.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Row
from warmup.diagnostics.misses import MissedProblem, encode_problems
from warmup.table import Table
from warmup.table.codec import encode
from warmup.table.store import read

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed: the step for Ray in .ci/run does that",
    ),
    # Ray leaves the log files of a head node open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
SIZES = tuple(range(16, 16 * 11, 16))
SMALL = "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
CLIENT_PORT = 21001
WAIT_S = 60.0


@dataclass
class Nodes:
    """A cluster with two nodes that have room for a worker, beside the node of the driver."""

    cluster: Any
    last: Any

    @property
    def address(self) -> str:
        """What a driver connects to."""
        return str(self.cluster.address)

    def kill_last(self) -> None:
        """Kill a node as a host that loses its power."""
        self.cluster.remove_node(self.last, allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """The cluster of all tests; the last test of a module may kill a node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "ray_client_server_port": CLIENT_PORT,
            },
        )
        cluster.add_node(num_cpus=1)
        yield Nodes(cluster, cluster.add_node(num_cpus=1))
        cluster.shutdown()


@pytest.fixture
def keys(make_key: Callable[..., str]) -> list[str]:
    """The keys of the problems, in the order of the document."""
    return [make_key(size) for size in SIZES]


@dataclass
class Driver:
    """A driver in a process of its own, whose problems take ``seconds`` each."""

    process: subprocess.Popen[str]
    log: Path
    events: list[dict[str, Any]] = field(default_factory=list)

    def until(self, name: str) -> dict[str, Any]:
        """Return the next event with *name*, and keep those before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if name in self.events[-1]:
                return self.events[-1]
        raise AssertionError(f"the driver ended with {self.process.wait()}: {self.errors()}")

    def errors(self) -> str:
        """Return what the driver printed to stderr."""
        return self.log.with_suffix(".err").read_text()

    def begun(self) -> list[tuple[int, str]]:
        """Return which process began which problem, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(pid), key) for pid, _, key in (line.partition(" ") for line in lines)]

    def report(self) -> dict[str, Any]:
        """Return the report of the build, which ends now."""
        report = self.until("rows")
        assert self.process.wait(WAIT_S) == 0
        return report

    def losses(self) -> list[dict[str, Any]]:
        """Return the events of problems whose worker was lost."""
        return [event for event in self.events if "lost" in event]


Start = Callable[..., Driver]


@pytest.fixture
def start(
    make_table: Callable[..., Table],
    make_row: Callable[..., Row],
    keys: list[str],
    tmp_path: Path,
) -> Iterator[Start]:
    """``start(nodes, seconds=0.3)``: a driver that builds t.json on the nodes."""
    running: list[Driver] = []

    def begin(address: str, *, seconds: float = 0.3, devices: str = "cpu", **given: Any) -> Driver:
        rows = make_table({key: make_row(BLOCK_M=16) for key in keys})
        log = tmp_path / "begun.log"
        case = {
            "table": encode(rows),
            "control_us": 100.0,
            "faults": {},
            "seconds": seconds,
            "log": str(log),
        }
        told = {
            "address": address,
            "devices": devices,
            "keys": keys,
            "case": case,
            "out": str(tmp_path / "t.json"),
            **given,
        }
        with log.with_suffix(".err").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAMS / "cluster_driver.py"), json.dumps(told)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        running.append(Driver(process, log))
        return running[-1]

    yield begin
    for driver in running:
        driver.process.kill()
        driver.process.wait()
        assert driver.process.stdout is not None
        driver.process.stdout.close()


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _begun_once_unless_lost(driver: Driver, report: dict[str, Any], keys: list[str]) -> None:
    """Check that every problem has a row, and that none was tuned again without a loss."""
    assert report["rows"] == sorted(keys)
    assert report["not_tuned"] == {}
    losses = Counter(event["lost"] for event in driver.losses())
    begun = Counter(key for _, key in driver.begun())
    assert begun.keys() == set(keys)
    assert not begun - Counter(keys) - losses


def test_both_nodes_tune_and_every_problem_is_tuned_once(
    nodes: Nodes, start: Start, keys: list[str]
) -> None:
    """The driver's table has all rows, and each node finished some problems."""
    driver = start(nodes.address)
    report = driver.report()
    _begun_once_unless_lost(driver, report, keys)
    assert sum(report["by_device"].values()) == len(keys)
    assert all(report["by_device"].values())
    assert len(report["by_device"]) == 2


@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None, reason="ray:// needs grpcio, of ray[client]"
)
def test_a_driver_outside_of_the_cluster_builds_through_ray_client(
    nodes: Nodes, start: Start, keys: list[str]
) -> None:
    """With an address ray://HOST:PORT the driver is no part of the cluster."""
    driver = start(f"ray://127.0.0.1:{CLIENT_PORT}")
    _begun_once_unless_lost(driver, driver.report(), keys)


def test_a_worker_that_is_killed_costs_no_row(nodes: Nodes, start: Start, keys: list[str]) -> None:
    """Its problem is tuned once more, by a worker that starts again or the other node's."""
    driver = start(nodes.address)
    driver.until("finished")
    os.kill(driver.begun()[-1][0], signal.SIGKILL)
    _begun_once_unless_lost(driver, driver.report(), keys)
    assert "was killed by SIGKILL" in driver.losses()[0]["reason"]


def test_an_actor_that_is_killed_costs_no_row(nodes: Nodes, start: Start, keys: list[str]) -> None:
    """Ray reports the death, and the device has an actor again, or the other node goes on."""
    driver = start(nodes.address)
    driver.until("finished")
    os.kill(_parent_of(driver.begun()[-1][0]), signal.SIGKILL)
    _begun_once_unless_lost(driver, driver.report(), keys)
    assert "ActorDiedError" in driver.losses()[0]["reason"]


def test_what_ray_prints_of_a_death_is_on_stderr(nodes: Nodes, start: Start) -> None:
    """Ray's sentence about the killed worker is there, and stdout has the driver's events alone."""
    driver = start(nodes.address, seconds=1.0)
    driver.until("finished")
    os.kill(_parent_of(driver.begun()[-1][0]), signal.SIGKILL)
    driver.report()  # reads each line of stdout as an event
    assert "(raylet" in driver.errors()


def test_a_driver_that_is_killed_goes_on_with_what_is_missing(
    nodes: Nodes, start: Start, keys: list[str], tmp_path: Path
) -> None:
    """Rows that were on its disk are not tuned again, and its workers end with it."""
    first = start(nodes.address)
    for _ in range(3):
        first.until("finished")
    first.process.kill()
    first.process.wait()
    on_disk = read(tmp_path / "t.json").rows.keys()
    before = first.begun()
    assert 3 <= len(on_disk) < len(keys)
    report = start(nodes.address).report()
    assert report["rows"] == sorted(keys)
    assert set(report["known"]) == set(on_disk)
    begun = Counter(key for _, key in first.begun()[len(before) :])
    assert begun.keys() == set(keys) - on_disk
    assert set(begun.values()) == {1}
    assert not [pid for pid, _ in before if Path(f"/proc/{pid}").exists()]


def test_a_spent_budget_leaves_the_rest_untuned(
    nodes: Nodes, start: Start, keys: list[str]
) -> None:
    """What was begun in time has its row, and the others have the reason; the build ends.

    The budget counts from before the workers start, which takes seconds where the machine is busy;
    two workers begin at most eight of the ten problems in it.
    """
    report = start(nodes.address, seconds=6.0, budget=20.0).report()
    assert report["rows"]
    assert report["not_tuned"].keys() == set(keys) - set(report["rows"])
    assert set(report["not_tuned"].values()) == {"the budget was spent before it was begun"}


def _build(nodes: Nodes, *words: str) -> subprocess.CompletedProcess[str]:
    where = ("--cluster", nodes.address, "--devices", "cpu=1", "--json")
    return subprocess.run(
        [sys.executable, "-m", "warmup", "build", *words, *where],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_command_tunes_on_a_node_that_has_the_driver_s_program(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real worker measures a small matmul, and stdout is the report alone."""
    monkeypatch.setenv("WARMUP_WAIT_FOR_QUIET", "0")
    problem = MissedProblem(SMALL, "gemm", "not_in_table", 1)
    misses, table = tmp_path / "misses.json", tmp_path / "t.json"
    misses.write_text(encode_problems({(problem.key, problem.reason): 1}, ()))
    done = _build(nodes, "--problems", str(misses), "--out", str(table))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [device["problems"] for device in report["devices"]] == [1]
    assert read(table).rows.keys() == {SMALL}


def test_a_node_that_is_killed_costs_no_row(nodes: Nodes, start: Start, keys: list[str]) -> None:
    """Its problem and all that are left are tuned on the other node."""
    driver = start(nodes.address)
    driver.until("finished")
    nodes.kill_last()
    report = driver.report()
    _begun_once_unless_lost(driver, report, keys)
    (loss,) = driver.losses()
    assert loss["goes_on"]
    assert report["by_device"][loss["device"]] < len(keys) / 2
