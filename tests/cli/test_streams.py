"""stdout and stderr that are closed, full or left by their reader; signals to a long command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import typer
from own_processes import Done
from sample_tables import make_table

from warmup.cli.streams import interruptible
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


class _Dies:
    """An object to which weak references can be made."""


@pytest.mark.usefixtures("heeded_ctrl_c")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_arrives_in_a_finalizer_ends_the_command(
    number: signal.Signals, code: int
) -> None:
    """Python drops what a weak reference's callback raises; the command ends with its code."""
    asked: list[object] = []

    def signalled(_dead: weakref.ref[_Dies]) -> None:
        asked.append(number)
        os.kill(os.getpid(), number)
        for _ in range(100):
            time.sleep(0.01)
        asked.append("not reached")

    def long_command() -> None:
        dies = _Dies()
        asked.append(weakref.ref(dies, signalled))
        with interruptible():
            del dies
            time.sleep(30)

    with pytest.raises(typer.Exit) as ended:
        long_command()
    assert ended.value.exit_code == code
    assert asked[1:] == [number]
