"""What commands write their outputs to: links, devices, folders and files of others stay."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from own_processes import Done, run_python
from sample_tables import make_key, make_row, make_table

from warmup.table.codec import encode
from warmup.table.store import read

# Commands that write a file at OUT.
COMMANDS = {
    "merge": ("merge", "a.json", "b.json", "-o", "OUT"),
    "audit": ("audit", "log", "--out", "OUT"),
    "misses": ("audit", "log", "--misses-out", "OUT"),
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a device")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for m, name in enumerate(("a", "b"), start=1):
        (tmp_path / f"{name}.json").write_text(encode(make_table({make_key(m): make_row()})))
    event = {"event": "lookup.hit", "schema": 1, "run": "r", "pid": 1, "seq": 0}
    (tmp_path / "log").write_text(json.dumps({**event, "key": make_key(1)}) + "\n")
    return tmp_path


@pytest.fixture
def run(folder: Path, run_main: Callable[..., Done]) -> Callable[..., Done]:
    """``run("merge", out)``: the command with that output, in the folder."""
    return lambda name, out: run_main(
        *(str(out) if word == "OUT" else word for word in COMMANDS[name])
    )


@needs_root
@pytest.mark.parametrize("name", COMMANDS)
def test_a_device_stays_a_device(folder: Path, run: Callable[..., Done], name: str) -> None:
    os.mknod(folder / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    done = run(name, folder / "null")
    assert stat.S_ISCHR((folder / "null").lstat().st_mode)
    assert done.returncode == 0


def test_a_link_stays_a_link(folder: Path, run: Callable[..., Done]) -> None:
    for name in COMMANDS:
        (folder / f"{name}-link").symlink_to(f"real-{name}")
        assert run(name, folder / f"{name}-link").returncode == 0, name
        assert (folder / f"{name}-link").readlink() == Path(f"real-{name}")
        assert (folder / f"real-{name}").is_file(), name


def test_an_output_that_is_no_file_is_one_line_with_code_3(run: Callable[..., Done]) -> None:
    """A folder, or nothing; what a path could do to a terminal is escaped."""
    for name, out in product(COMMANDS, ("", ".", "/", "no/such/../..")):
        done = run(name, out)
        assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), (name, out)
    for name in COMMANDS:
        done = run(name, f"no\nsuch\x1b[31m{name}/x")
        assert (len(done.stderr.splitlines()), "\x1b" in done.stderr) == (1, False), name
        assert r"no\nsuch\x1b[31m" in done.stderr, name


def test_merged_tables_are_written_to_stdout(folder: Path) -> None:
    words = ("-m", "warmup", "merge", "a.json", "b.json", "-o")
    done = run_python(*words, "/dev/stdout", cwd=folder)
    run_python(*words, "c.json", cwd=folder)
    assert (done.stdout, len(read(folder / "c.json").rows)) == ((folder / "c.json").read_text(), 2)


def test_a_key_of_a_million_letters_is_a_short_error(
    folder: Path, run: Callable[..., Done], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "a.json").read_text()
    key = "x" * 1_000_000
    for damaged in (text.replace("mode", key), text.replace('"m=', f'"{key} m=')):
        (folder / "a.json").write_text(damaged.replace("addmm m", f"{key[:200_000]} m"))
        done = run("merge", "c.json")
        assert (done.returncode, len(done.stderr) < 2000) == (3, True)
