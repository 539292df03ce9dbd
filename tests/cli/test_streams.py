"""stdout and stderr that are closed, full or left by their reader: exit codes and no traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from own_processes import Done
from sample_tables import make_table

from warmup.table.codec import encode

LOST = "error: stdout cannot be written: No space left on device; send it to a file that can be\n"

Shell = Callable[[str], Done]


@pytest.fixture
def shell(tmp_path: Path, root: Path) -> Shell:
    """``shell("warmup show t.json >&-")`` beside t.json, with ``warmup`` of this checkout."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    warmup = f"{shlex.quote(sys.executable)} -m warmup"

    def run(command: str) -> Done:
        return subprocess.run(
            ["/bin/sh", "-c", command.replace("warmup", warmup, 1)],
            env={**os.environ, "PYTHONPATH": str(root)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_full_stdout_is_one_line_and_code_3(shell: Shell) -> None:
    for command in ("show t.json", "show t.json --json", "--help"):
        done = shell(f"warmup {command} > /dev/full")
        assert (done.returncode, done.stderr) == (3, LOST), command


def test_a_closed_stream_changes_no_exit_code(shell: Shell) -> None:
    """Nor does a stderr that is full; nothing else is printed in its place."""
    for (command, code), streams in product(
        (("show t.json", 0), ("show absent.json", 3), ("show", 2), ("run --table t.json false", 1)),
        (">&-", "2>&-", "2> /dev/full", "<&- >&- 2>&-"),
    ):
        done = shell(f"warmup {command} {streams}")
        assert done.returncode == code, (command, streams)
        assert "Traceback" not in done.stderr, (command, streams)
        assert "rror" not in done.stdout, (command, streams)


def test_a_reader_that_left_is_code_1_without_a_word(shell: Shell) -> None:
    done = shell("{ warmup show t.json; echo $? >&3; } 3>&2 | true")
    assert done.stderr in ("1\n", "0\n")  # 0 where the reader left after the last line


def test_no_file_takes_the_place_of_a_closed_stream(shell: Shell, tmp_path: Path) -> None:
    """A child process does not write into the file that was opened next."""
    shell("warmup run --table t.json --audit-log log -- sh -c 'echo out; echo err >&2' >&- 2>&-")
    assert (tmp_path / "log").read_text() == ""
