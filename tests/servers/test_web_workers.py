"""Servers with several processes under `warmup run`, on CPU: uvicorn, gunicorn, a pool, torchrun.

They need the extra `servers`, which .ci/nightly installs in a step of its own.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from warmup.serving.audit import Run, read_logs
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
SOCKET = "web.sock"  # in the working folder
BIND = f"unix:{SOCKET}"
NET = ("--model", str(PROGRAMS / "models" / "plain_script.py:Net"), "--input", "x=[seqlen,32]:f32")
NET += ("--seqlens", "8")
LIMIT_S = 200  # only ends a test that hangs

pytestmark = pytest.mark.skipif(
    find_spec("uvicorn") is None or find_spec("gunicorn") is None,
    reason="the extra servers is not installed",
)

# Words behind the interpreter, and how many processes compile.
SERVERS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "uvicorn": (("-m", "uvicorn", "web_app:app", "--workers", "2", "--uds", SOCKET), 2),
    "gunicorn": (("-m", "gunicorn", "web_app:wsgi", "-w", "2", "-t", "200", "-b", BIND), 2),
    "gunicorn --preload": (
        ("-m", "gunicorn", "web_app:wsgi", "-w", "2", "--preload", "-t", "200", "-b", BIND),
        1,
    ),
}
PROGRAM = str(PROGRAMS / "web_app.py")
BATCHES: Mapping[str, tuple[str, ...]] = {
    "spawn pool": (PROGRAM, "pool"),
    "torchrun": (
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(PROGRAM, "rank"),
    ),
}


@pytest.fixture(scope="session")
def table(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> Path:
    words = ("-m", "warmup", "build", "--device", "cpu", *NET, "--out", "net.json")
    return run_once("web-net", *words, **variables)[0] / "net.json"


def start(folder: Path, table: Path, *words: str) -> subprocess.Popen[str]:
    """Start ``warmup run`` of the interpreter with *words*, as many threads as in the table."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    own = ("--table", str(table), "--audit-log", str(folder / "audit.jsonl"), "--freezing")
    return subprocess.Popen(
        [sys.executable, "-m", "warmup", "run", *own, "--", sys.executable, *words],
        env={
            **plain,
            "PYTHONPATH": os.pathsep.join(map(str, (PROGRAMS, ROOT))),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # each process compiles
            **({"WARM": ""} if "--preload" in words else {}),
            "OMP_NUM_THREADS": str(read(table).provenance.runtime.device.threads),
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def runs_of(folder: Path) -> list[Run]:
    """Return the runs in the audit log of *folder*; none before there is a log."""
    log = folder / "audit.jsonl"
    return [*read_logs([log]).runs.values()] if log.exists() else []


@contextmanager
def serving(folder: Path, table: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """A server whose processes have all compiled, or with preloaded code wait for a request."""
    words, count = SERVERS[kind]
    process = start(folder, table, *words)
    asked, awaited = len(read(table).rows), 0 if "--preload" in words else count
    try:
        ended = time.monotonic() + LIMIT_S
        while sum(len(run.counts["hits"]) >= asked for run in runs_of(folder)) < awaited:
            assert process.poll() is None, process.communicate()[1][-3000:]
            assert time.monotonic() < ended
            time.sleep(0.1)
        yield process
    finally:
        process.kill()


def answer(folder: Path) -> int:
    """Return the number of the process that answered a request, once the socket is served."""
    ended = time.monotonic() + LIMIT_S
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(folder / SOCKET))
            except (FileNotFoundError, ConnectionRefusedError):
                assert time.monotonic() < ended
                time.sleep(0.1)
                continue
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            reply = b"".join(iter(lambda: client.recv(4096), b""))
        return max(map(int, re.findall(rb"\d+", reply.partition(b"\r\n\r\n")[2])))  # chunks


@pytest.mark.parametrize("kind", SERVERS)
def test_the_processes_of_a_server_are_counted(kind: str, table: Path, tmp_path: Path) -> None:
    """Each process that compiles has its own run, with all rows hit.

    Of a preloading server the parent installs the table and the worker asks it: only the worker
    that was asked compiles, and the parent is not silent. The server answers, SIGTERM reaches it
    through `warmup run`, and its exit code 0 comes back.
    """
    rows = read(table).rows
    with serving(tmp_path, table, kind) as process:
        answered_by = answer(tmp_path)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    runs = [run for run in runs_of(tmp_path) if run.counts["hits"]]
    count = SERVERS[kind][1]
    assert process.returncode == 0, said[-3000:]
    assert [set(run.counts["hits"]) for run in runs] == [set(rows)] * count
    assert all(not run.counts["misses"] and not run.counts["uncovered"] for run in runs)
    assert answered_by in {int(run.name.rpartition("/")[2]) for run in runs}
    assert f"hits {count * len(rows)}, misses 0, uncovered 0" in said
    assert "processes 2, silent 0" in said


@pytest.mark.parametrize("kind", BATCHES)
def test_the_processes_of_a_batch_are_counted(kind: str, table: Path, tmp_path: Path) -> None:
    """Both processes that compile have all rows as hits; the one that starts them has no run.

    The exit code of the command comes back.
    """
    rows = read(table).rows
    process = start(tmp_path, table, *BATCHES[kind], "0" if kind == "torchrun" else "3")
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == (0 if kind == "torchrun" else 3), said[-3000:]
    runs = runs_of(tmp_path)
    assert [set(run.counts["hits"]) for run in runs] == [set(rows)] * 2
    assert [run.rank for run in sorted(runs, key=lambda run: run.rank)] == (
        ["0", "1"] if kind == "torchrun" else ["", ""]
    )
    assert f"hits {2 * len(rows)}, misses 0, uncovered 0" in said
    assert "processes 2, silent 0" in said
