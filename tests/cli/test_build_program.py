"""`warmup build -- COMMAND`: what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_row, make_table

from warmup.table.store import read, write
from warmup.tuning.report import ProgramRun

ROOT = Path(__file__).resolve().parents[2]
STARTS = "open('started', 'w')"
COMPILES = "import torch; torch.compile(torch.nn.Linear(4, 4))(torch.ones(2, 4))"

RunMain = Callable[..., subprocess.CompletedProcess[str]]


def test_options_that_a_program_does_not_have(run_main: RunMain) -> None:
    """A program makes its own model and inputs: such options are refused, and nothing runs."""
    for words, said in (
        (("--model", "m.py", "--out", "t.json", "--", "true"), "cannot be combined with --model"),
        (("--out", "t.json", "--dry-run", "--", "true"), "cannot be combined with --dry-run"),
        (("--", "true"), "a program needs --out"),
        (
            ("--model", "m.py", "--bundle", "b.zip"),
            "--model; --bundle takes no value, the bundle is written beside the table",
        ),
        (("--model", "m.py", "--set", "after=yes"), "--set after=yes needs a program"),
    ):
        done = run_main("build", *words)
        assert done.returncode == 2, words
        assert said in " ".join(done.stderr.split()), words


def test_a_program_that_asks_nothing_is_an_error(run_main: RunMain, tmp_path: Path) -> None:
    done = run_main("build", "--out", "t.json", "--", sys.executable, "-c", STARTS)
    assert done.returncode == 3
    assert "no process of the command asked inductor for a choice" in done.stderr
    assert ((tmp_path / "started").exists(), (tmp_path / "t.json").exists()) == (True, False)


def test_a_build_does_not_warn_of_its_own_table(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program compiles under options of its own, and the rows are made for these."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "serve.py").write_text(
        "import torch\nwith torch.no_grad():\n    compiled = torch.compile(torch.nn.Linear(4, 4), "
        "options={'freezing': False})\n    compiled(torch.ones(2, 4))\nprint('compiled')\n"
    )
    program = f"{sys.executable} serve.py > said 2>&1"
    run_main("build", "--out", "t.json", "--", "sh", "-c", program)
    said = (tmp_path / "said").read_text()
    assert "compiled" in said
    assert "ContradictionWarning" not in said


def test_a_damaged_table_starts_no_program(run_main: RunMain, tmp_path: Path) -> None:
    damaged = tmp_path / "t.json"
    damaged.write_text('{"schema": 1')
    done = run_main("build", "--out", "t.json", "--", sys.executable, "-c", STARTS)
    assert (done.returncode, (tmp_path / "started").exists()) == (3, False)
    assert damaged.read_text() == '{"schema": 1'


def test_a_table_of_another_device_is_left_alone(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends at its first compile, names both machines, and nothing is written."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "t.json"
    write(path, make_table())
    before = read(path)
    program = f"{sys.executable} -c '{COMPILES}' 2> said"
    done = run_main("build", "--out", "t.json", "--device", "cpu", "--", "sh", "-c", program)
    assert (done.returncode, read(path)) == (3, before)
    assert "device.type: table cuda, here cpu" in (tmp_path / "said").read_text()


def test_a_build_from_vllm_on_a_cpu_says_first_that_nothing_asks(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is a line before the engine starts, and the error's when it has ended."""
    engine = [sys.executable, "-c", STARTS]
    monkeypatch.setattr("warmup.cli.build._engine_command", lambda *_words: engine)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = run_main("build", "--from-vllm", "m", "--out", "t.json")
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("note: on a CPU vLLM's linears call oneDNN and ask inductor nothing")
    assert last.startswith("error: no process of the command asked inductor for a choice; on a CPU")
    assert done.returncode == 3


def test_a_decision_that_changed_when_the_program_had_ended_is_said() -> None:
    """A region is measured when the program has ended; kernels of another winner have no row."""
    same, changed = "pad addmm m=8 n=9 k=9 bf16 a=row b=col", "pad mm m=8 n=9 k=9 bf16 a=row b=col"
    before = {same: make_row("as_is"), changed: make_row("as_is")}
    ran: Any = None
    program = ProgramRun(ran, frozenset(), before, ())
    assert program.changed(make_table({**before, changed: make_row("padded")})) == [changed]
    assert program.changed(make_table(before)) == []
