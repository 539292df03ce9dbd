"""`warmup build -- COMMAND`: a table from a program that knows nothing of warmup, on CPU.

One program with two processes (tests/programs/record_program.py) is recorded as it asks, served,
and recorded with its questions left to the end; each from empty caches.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS, answer_of, environment

pytestmark = pytest.mark.long

LINEAR = "packed_linear m=8 n=64 k=32 f32 a=row b=packed out=f32 fp32=ieee | epilogue=none"
RANGED = (
    "linear_unary m=2..64 n=64 k=32 f32 a=row b=packed bias=1d out=f32 fp32=ieee | epilogue=none"
)
SPLIT = "split sum x=8 r=4096 f32 out=f32 reads=f32 hint=inner rule=4 input=again"
LISTENS = "import signal, sys; print('ready', flush=True); signal.pause()"


@pytest.fixture(scope="module")
def runs(run_once: Callable[..., tuple[Path, str]]) -> dict[str, Any]:
    _, said = run_once("record", str(PROGRAMS / "record_program.py"), ".")
    found: dict[str, Any] = answer_of(said)
    return found


def test_what_a_program_asks_is_tuned_as_it_asks(runs: dict[str, Any]) -> None:
    """A static size and a dynamic range; the second process asks what the first has measured.

    A split reduction cannot be measured inside a compile; its ways are compiled afterwards. The
    program ended with 7; its rows are in the table all the same.
    """
    asked = runs["asked"]
    assert asked["tuned"] == [RANGED, LINEAR]
    assert (asked["processes"], asked["hits"]) == (2, {LINEAR: 1})
    assert (asked["left"], asked["rows"][SPLIT]) == ([SPLIT], "split(parts=2)")
    assert runs["ways"] == [f"split(parts={parts})" for parts in (4, 1, 4, 1, 2, 8)]
    assert (asked["exit_code"], asked["complete"]) == (7, True)


def test_the_same_program_misses_nothing_afterwards(runs: dict[str, Any]) -> None:
    """Served from the table, every question of both processes is a hit."""
    assert runs["served"] == {"hits": {LINEAR: 2, RANGED: 1, SPLIT: 1}, "misses": []}


def test_after_leaves_every_question_to_the_end(runs: dict[str, Any]) -> None:
    """Nothing is measured in the program; GEMMs are rebuilt, and a split reduction is named."""
    after = runs["after"]
    assert (after["tuned"], after["left"]) == ([], [LINEAR, SPLIT])
    assert after["rows"].keys() == {LINEAR}
    assert (after["not_rebuilt"].keys(), after["complete"]) == ({SPLIT}, False)


def test_a_signal_ends_the_program_and_not_the_build(tmp_path: Path) -> None:
    """SIGTERM reaches the program; the command then says what it has, and passes the code on."""
    command = ("--out", "t.json", "--", sys.executable, "-c", LISTENS)
    process = subprocess.Popen(
        [sys.executable, "-m", "warmup", "build", *command],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "the program ended with code 143; nothing left to tune" in err
    first, *_, last = out.splitlines()
    assert first == "t.json: no rows: nothing was asked"
    assert last == "the program ended with code 143"
