"""Builds on a real Ray cluster of this machine, each node a process, whose parts are killed.

Where something is killed, tasks sleep instead of measuring (`programs/cluster_driver.py`). The
nodes end one by one: the order of the tests matters.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_table

from warmup.serving.audit import encode_problems
from warmup.table.codec import encode
from warmup.table.store import read, write

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    # Ray leaves the log files of a head node open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "cluster_driver.py"
SIZES = range(16, 16 * 11, 16)
SMALL = "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
MEMORY = {"object_store_memory": 80 * 2**20}
Start = Callable[..., "Driver"]


@dataclass
class Nodes:
    """A cluster, and its nodes that have room for a task: two at first."""

    cluster: Any
    client: str  # for a driver outside of the cluster
    rest: list[Any]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch, socket.socket() as free:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": port, **MEMORY}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        rest = [cluster.add_node(num_cpus=1, **MEMORY) for _ in range(2)]
        yield Nodes(cluster, f"ray://127.0.0.1:{port}", rest)
        cluster.shutdown()


@dataclass
class Driver:
    """A driver in a process of its own, whose problems take 0.3 s each."""

    process: subprocess.Popen[str]
    log: Path

    def until(self, name: str) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if name in (event := json.loads(line)):
                return event[name]
        raise AssertionError(self.log.with_suffix(".err").read_text())

    def begun(self) -> list[tuple[int, str]]:
        words = (line.split(" ", 1) for line in self.log.read_text().splitlines())
        return [(int(pid), key) for pid, key in words]

    def all_tuned(self, lost: int = 0) -> dict[str, Any]:
        """Check that every problem has a row, *lost* begun twice; return the report."""
        report: dict[str, Any] = self.until("report")
        assert self.process.wait(60) == 0
        assert report["not_tuned"] == {}
        assert len(report["rows"]) == len(SIZES)
        begun = Counter(key for _, key in self.begun())
        assert sorted(begun) == report["rows"]
        assert begun.total() - len(SIZES) <= lost
        return report


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(address, shard)``: a driver that builds t.json, or its share, on the nodes."""
    running: list[Driver] = []
    log = tmp_path / "begun.log"
    table = encode(make_table({make_key(size): make_row(BLOCK_M=16) for size in SIZES}))

    def begin(address: str, shard: str | None = None) -> Driver:
        given = {"address": address, "table": table, "log": str(log), "seconds": 0.3, "gone_s": 3}
        given["shard"] = shard
        words = json.dumps({**given, "out": str(tmp_path / "t.json")})
        with log.with_suffix(".err").open("w") as errors:
            command = [sys.executable, "-P", str(PROGRAM), words]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        running.append(Driver(process, log))
        return running[-1]

    yield begin
    for driver in running:
        driver.process.kill()
        driver.process.communicate()


def test_both_nodes_tune_each_problem_once_for_a_driver_outside(nodes: Nodes, start: Start) -> None:
    """Through Ray Client; each node finished some problems."""
    by_device = start(nodes.client).all_tuned()["by_device"]
    assert (sum(by_device.values()), len(by_device)) == (len(SIZES), 2)


def test_a_share_is_tuned_alone(nodes: Nodes, start: Start) -> None:
    """The driver takes the share of all problems, and its tasks tune what they get."""
    first = start(nodes.cluster.address, "1/2").until("report")["rows"]
    assert 0 < len(first) < len(SIZES)
    report = start(nodes.cluster.address, "2/2").all_tuned()
    assert sum(report["by_device"].values()) == len(SIZES) - len(first)


def test_a_worker_that_is_killed_costs_no_row(nodes: Nodes, start: Start) -> None:
    """Ray runs its task once more, and what Ray prints of the death is not on stdout."""
    driver = start(nodes.cluster.address)
    driver.until("finished")
    os.kill(driver.begun()[-1][0], signal.SIGKILL)
    driver.all_tuned(lost=2)


def test_a_driver_that_is_killed_goes_on_with_what_is_missing(
    nodes: Nodes, start: Start, tmp_path: Path
) -> None:
    """Rows that were on its disk are not tuned again, and its workers end with it."""
    first = start(nodes.cluster.address)
    for _ in range(3):
        first.until("finished")
    first.process.kill()
    first.process.wait()
    on_disk, before = read(tmp_path / "t.json").rows.keys(), first.begun()
    assert 3 <= len(on_disk) < len(SIZES)
    report = start(nodes.cluster.address).until("report")
    assert report["known"] == sorted(on_disk)
    begun = sorted(key for _, key in first.begun()[len(before) :])
    assert begun == sorted(set(report["rows"]) - on_disk)
    assert len(begun) + len(on_disk) == len(SIZES)
    assert not [pid for pid, _ in before if Path(f"/proc/{pid}").exists()]


def test_a_node_that_is_killed_costs_no_row(nodes: Nodes, start: Start) -> None:
    """Its problems are tuned on the other node; the host lost its power."""
    driver = start(nodes.cluster.address)
    driver.until("finished")
    nodes.cluster.remove_node(nodes.rest.pop(), allow_graceful=False)
    driver.all_tuned(lost=2)


@pytest.mark.long
def test_the_command_measures_and_refuses_a_wrong_device(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small matmul is measured; the table of a GPU stays as it was; no node has an H100."""
    monkeypatch.setenv("WARMUP_WAIT_FOR_QUIET", "0")
    misses, table, other = (tmp_path / name for name in ("m.json", "t.json", "other.json"))
    misses.write_text(encode_problems({(SMALL, "not_in_table"): 1}, ()))
    write(other, make_table())
    before = other.read_bytes()
    command = [sys.executable, "-m", "warmup", "build", "--json", "--problems", str(misses)]
    command += ["--cluster", nodes.cluster.address, "--out"]

    def build(out: Path, devices: str) -> subprocess.CompletedProcess[str]:
        words = [*command, str(out), "--devices", devices]
        return subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)

    done = build(table, "cpu")
    assert done.returncode in {0, 4}, done.stderr
    assert [device["problems"] for device in json.loads(done.stdout)["devices"]] == [1]
    assert read(table).rows.keys() == {SMALL}
    for devices, said in (("cpu", "no machine can tune: "), ("H100", "has no such device")):
        done = build(other, devices)
        assert done.returncode not in (0, 1), (devices, done.stderr)
        assert said in " ".join(done.stderr.split()), devices
        assert other.read_bytes() == before, devices


def test_a_cluster_without_nodes_ends_the_build(nodes: Nodes, start: Start, tmp_path: Path) -> None:
    """An error sentence, and what was finished stays on disk."""
    driver = start(nodes.cluster.address)
    driver.until("finished")
    nodes.cluster.remove_node(nodes.rest.pop(), allow_graceful=False)
    assert driver.process.wait(60) == 1
    said = driver.log.with_suffix(".err").read_text()
    assert "BuildError: --devices cpu: the cluster has had no such device for 3 s" in said
    assert 1 <= len(read(tmp_path / "t.json").rows) < len(SIZES)
