"""The manifests of a fleet, their commands run in their order on CPU, with a folder as registry.

Words and script are those of `examples/deploy/kubernetes/fleet`; only places are replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked_python import run_forked

from warmup.table.store import read, write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
FLEET = ROOT / "examples/deploy/kubernetes/fleet"
SERVER_STARTS_S = 120

Done = subprocess.CompletedProcess[str]


def documents(name: str) -> dict[str, Any]:
    """Return the documents of a manifest by kind, of equal ones the last."""
    text = (FLEET / name).read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def words_of(pod: dict[str, Any], name: str) -> list[str]:
    found = [*pod.get("initContainers", ()), *pod["containers"]]
    (one,) = [container for container in found if container["name"] == name]
    return [*one["command"], *one.get("args", ())]


@dataclass
class Cluster:
    """Folders in place of volumes and registry, and what ran in them."""

    folder: Path

    @property
    def deployment(self) -> dict[str, Any]:
        """The pod of the servers."""
        found: dict[str, Any] = documents("serve-h200.yaml")["Deployment"]
        return found["spec"]["template"]["spec"]

    def here(self, text: str, **values: str) -> str:
        """Return *text* with the places of this cluster, and *values* as Kubernetes fills them."""
        for volume in ("tables", "table", "audit"):
            text = text.replace(f"/{volume}/", f"{self.folder / volume}/")
        for name, value in values.items():
            text = text.replace(f"$({name})", value)
        text = text.replace("/app/server.py", str(ROOT / "examples/deploy/server.py"))
        return text.replace("oci://registry.example.com/team/tables", str(self.folder / "images"))

    def environment(self, pod: str, **extra: str) -> dict[str, str]:
        """Return the variables of a container: each pod begins with empty caches."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        modules = os.pathsep.join((str(ROOT), str(ROOT / "examples")))
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / pod)}
        return {**os.environ, "PATH": path, "PYTHONPATH": modules, **caches, **extra}

    def run(self, *words: str, pod: str = "init") -> Done:
        """Run a command of warmup, in a fork of a process that has imported torch."""
        assert words[0] == "warmup"
        done = run_forked("-m", *words, env=self.environment(pod), cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        return done

    def initialize(self, digest: str) -> None:
        """Run the init containers of the Deployment, with the image *digest*."""
        pull = [self.here(word) for word in words_of(self.deployment, "pull")]
        self.run(*[word.partition("@")[0] + f"@{digest}" if "@" in word else word for word in pull])
        check = [self.here(word) for word in words_of(self.deployment, "check")]
        assert "state     ready (0)" in self.run(*check).stdout

    def serve(self, pod: str) -> list[dict[str, Any]]:
        """Run the server of the Deployment until its port is open, end it, return its events."""
        words = [self.here(word, POD_NAME=pod) for word in words_of(self.deployment, "server")]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = [sys.executable if word == "python" else word for word in words]
        with subprocess.Popen(
            [sys.executable, "-m", *words, "--port", str(port)],
            env=self.environment(pod),
            stderr=subprocess.PIPE,
            text=True,
        ) as server:
            wait_for(port, server)
            server.send_signal(signal.SIGTERM)
            _, said = server.communicate(timeout=60)
        assert server.returncode == 143, said
        log = self.folder / "audit" / f"{pod}.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()]

    def collect(self) -> Done:
        """Run the script of the CronJob."""
        found = documents("collect-misses-h200.yaml")
        (text,) = found["ConfigMap"]["data"].values()
        pod = found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        (tag,) = [one["value"] for one in pod["containers"][0]["env"] if one["name"] == "TAG"]
        script = self.folder / "tune-misses.sh"
        script.write_text(self.here(text))
        return subprocess.run(
            ["sh", str(script)],  # noqa: S607  as the manifest names it
            env=self.environment("collect", TAG=self.here(tag)),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )


def wait_for(port: int, server: subprocess.Popen[str]) -> None:
    """Return when *server* has opened its port."""
    give_up = time.monotonic() + SERVER_STARTS_S
    while time.monotonic() < give_up:
        assert server.poll() is None, server.communicate()[1]
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    server.kill()
    pytest.fail(f"the server did not open its port: {server.communicate()[1]}")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Empty volumes, and `warmup` on the path."""
    for name in ("tables", "table", "audit", "bin"):
        (tmp_path / name).mkdir()
    program = tmp_path / "bin" / "warmup"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m warmup "$@"\n')
    program.chmod(0o755)
    return Cluster(tmp_path)


def count(events: list[dict[str, Any]], name: str) -> int:
    return sum(event["event"] == name for event in events)


def last_reference(done: Done) -> tuple[str, str]:
    """Return tag and digest of the reference that `warmup push` printed last."""
    reference = done.stdout.splitlines()[-2]
    place, _, digest = reference.partition("@")
    return place.rpartition(":")[2], digest


def test_misses_of_a_pod_become_rows_under_a_new_tag(
    built: tuple[Path, dict[str, Any]], cluster: Cluster
) -> None:
    """Push, serve with misses, collect, pull by the new digest, check, serve with hits.

    And the same table once more under its tag, as on a night without misses: nothing is written.
    """
    whole = read(built[0])
    (missed,) = [key for key in whole.rows if " m=64 " in key and "gelu_tanh" in key]
    table = cluster.folder / "tables" / "table.json"
    fewer = {key: row for key, row in whole.rows.items() if key != missed}
    write(table, replace(whole, rows=fewer))
    job = documents("build-tables.yaml")["Job"]["spec"]["template"]["spec"]
    first = cluster.run(*map(cluster.here, words_of(job, "push")))
    _, old = last_reference(first)

    shutil.copy(table, cluster.folder / "table")
    events = cluster.serve("pod-1")
    assert (count(events, "lookup.hit"), count(events, "lookup.missed")) == (3, 1)

    done = cluster.collect()
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    tag, new = last_reference(done)
    assert tag.endswith(f"-{hashlib.sha256(table.read_bytes()).hexdigest()[:12]}")
    assert new != old
    assert set(read(table).rows) == set(whole.rows)

    (cluster.folder / "table" / "table.json").unlink()
    cluster.initialize(new)
    events = cluster.serve("pod-2")
    assert (count(events, "lookup.hit"), count(events, "lookup.missed")) == (4, 0)

    again = cluster.run("warmup", "push", str(table), f"{cluster.folder / 'images'}:{tag}")
    assert last_reference(again) == (tag, new)
    assert "0 blobs written" in again.stdout.splitlines()[-1]


@pytest.mark.parametrize("log", [None, "", "{}\n"])
def test_without_a_table_or_an_event_nothing_is_pushed(
    make_table: Callable[..., Any], cluster: Cluster, log: str | None
) -> None:
    """No log: nothing to do, code 0. A log, and no table: the check's code."""
    if log is not None:
        (cluster.folder / "audit" / "pod-1.jsonl").write_text(log)
    done = cluster.collect()
    assert done.returncode == (0 if log is None else 12)
    assert not (cluster.folder / "images").exists()
