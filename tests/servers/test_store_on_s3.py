"""A store of rows at an ``s3://`` URL, against a local server of that protocol (moto)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warmup.table import Table
from warmup.table.codec import encode
from warmup.table.store import read

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")
ROOT = Path(__file__).resolve().parents[2]
MAKE_BUCKET = "import s3fs; s3fs.S3FileSystem().mkdir('rows-of-tests')"


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What a process needs to reach a server with an empty bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 30
            while subprocess.run(
                [sys.executable, "-c", MAKE_BUCKET], env=variables, capture_output=True, check=False
            ).returncode:
                assert time.monotonic() < deadline
            yield variables
        finally:
            server.terminate()


def run(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `warmup store` with *words* in *folder*."""
    command = [sys.executable, "-m", "warmup", "store", *words]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_table_comes_back(
    environment: dict[str, str], tmp_path: Path, make_table: Callable[..., Table]
) -> None:
    """Added, listed, merged by a gc, and written again as it was."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    place = ("--store", "s3://rows-of-tests/a/b")
    assert run(environment, tmp_path, "add", "t.json", *place).returncode == 0
    assert run(environment, tmp_path, "gc", *place).returncode == 0
    done = run(environment, tmp_path, "get", "--like", "t.json", "-o", "out.json", *place)
    assert (done.returncode, done.stderr) == (0, "")
    assert read(tmp_path / "out.json") == make_table()


def test_no_bucket_is_made(
    environment: dict[str, str], tmp_path: Path, make_table: Callable[..., Table]
) -> None:
    """A bucket that is not there is an error, in one line."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    done = run(environment, tmp_path, "add", "t.json", "--store", "s3://nobody-made-it/rows")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "nobody-made-it/rows: warmup-store.json cannot be written" in done.stderr
