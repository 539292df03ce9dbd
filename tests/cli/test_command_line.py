"""Wrong uses and conveniences of the command line, one line of a table for each."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from own_processes import Done
from sample_tables import make_table
from typer.main import get_command

from warmup.cli.app import app
from warmup.table.codec import encode

RunMain = Callable[..., Done]
_PLAIN_MODEL = "import torch\nclass Net(torch.nn.Linear):\n    pass\n"
_COMMANDS = [
    (name,)
    for name in sorted(get_command(app).commands)  # type: ignore[attr-defined]
]

_MODEL = "build --model m.py"
# What is typed, the exit code, and how the one line on stderr begins behind ``error:``.
_WRONG = [
    ("show", 2, "Missing argument 'TABLE'; see"),
    ("show t.json --colour", 2, "No such option: --colour; see"),
    ("shw", 2, "No such command 'shw'"),
    ("explain -- python net.py", 2, "Invalid value for '-- COMMAND': a program is not run here"),
    ("build", 2, "Invalid value: give one of --model, --problems, --from-vllm"),
    (f"{_MODEL} --search foo", 2, "Invalid value for '--search': 'foo' is not one"),
    (f"{_MODEL} --problems p.json --out o.json", 2, "Invalid value: give one of"),
    ("build --problems p.json", 2, "Invalid value: --problems needs --out"),
    ("build --problems p.json --out o.json --seqlens 1", 2, "Invalid value: --problems"),
    (f"{_MODEL} --set tolerance=2", 2, "Invalid value: --set tolerance=2: 2 is"),
    (f"{_MODEL} --set fused_top_k=x", 2, "Invalid value: --set fused_top_k=x: "),
    (f"{_MODEL} --set colour=red", 2, "Invalid value: --set colour=red: write"),
    (f"{_MODEL} --set l2=cold --set l2=warm", 2, "Invalid value: --set l2 is"),
    (f"{_MODEL} --set after=yes", 2, "Invalid value: --set after=yes needs"),
    (f"{_MODEL} --seqlens 1 --dims 2", 2, "Invalid value: --seqlens 2: it was"),
    (f"{_MODEL} --seqlens 16,16", 3, "--seqlens: 16 is given more than once"),
    (f"{_MODEL} --seqlens 0", 3, ""),
    (f"{_MODEL} --seqlens 9..3", 3, ""),
    (f"{_MODEL} --seqlens 16 --budget 5x", 3, "--budget '5x' is no time"),
    (f"{_MODEL} --seqlens 16 --out net.py/t.json", 3, "--out net.py/t.json: "),
    ("explain --seqlens 1,2", 2, "Missing option '--model'"),
    ("suggest --histogram absent.txt", 3, ""),
    ("show absent.json", 3, "no table at absent.json"),
    ("show newer.json", 3, "newer.json: schema 99 is newer than"),
    ("show .", 3, ".: not a valid table: cannot be read: Is a directory"),
    ("audit net.py --table net.py", 3, "net.py: not a valid table"),
    ("show t.json --rows bmm", 1, "no row of t.json matches --rows bmm; its rows"),
    ("show t.json --candidates xyz", 1, "no row of t.json matches --candidates xyz"),
    ("diff t.json", 2, "Missing argument 'B'"),
    ("merge t.json t.json", 2, "Missing option '--out' / '-o'"),
    ("merge t.json t.json -o net.py/x.json", 3, "net.py/x.json: cannot write"),
    ("check t.json --prime", 3, "--prime and --model belong together"),
    ("check t.json --on-miss tune --model m.py --prime", 3, "--on-miss 'tune' is not for"),
    ("run -- true", 2, "Missing option '--table'"),
    ("run --table t.json", 2, "Missing argument 'COMMAND"),
    ("audit absent.log", 3, "the log absent.log cannot be read"),
    ("audit net.py --fail-on hits", 3, "--fail-on: hits is not something to fail on"),
    ("bench mm --rounds 0", 2, "Invalid value for '--rounds'"),
    ("bench mm softmax", 2, "Invalid value: bench mm takes no layers: softmax"),
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "t.json").write_text(encode(make_table()))
    (tmp_path / "net.py").write_text(_PLAIN_MODEL)
    (tmp_path / "newer.json").write_text('{"schema": 99}')
    return tmp_path


@pytest.mark.usefixtures("files")
def test_a_wrong_use_is_one_line(run_main: RunMain) -> None:
    for typed, code, said in _WRONG:
        done = run_main(*typed.split())
        assert (done.returncode, done.stderr.startswith(f"error: {said}")) == (code, True), typed
        assert (done.stderr.count("\n"), "Traceback" in done.stderr) == (1, False), typed


def test_help_is_short_and_whole(run_main: RunMain) -> None:
    """Each has -h and an example; no line exceeds 80 columns, no word is Python's or cut."""
    cut = re.compile(r"(?<![A-Z\]}])\.\.\.$|--\S+ <(list|Path)", re.MULTILINE)
    for words in ((), *_COMMANDS):
        done = run_main(*words, "-h")
        lines = done.stdout.splitlines()
        assert (done.returncode, done.stderr, max(map(len, lines)) <= 80) == (0, "", True), words
        assert not cut.search(done.stdout), words
        assert lines[-1] == "  Exit codes and errors: docs/reference/errors.md", words
        assert not words or f"\n  Examples:\n    warmup {words[0]}" in done.stdout, words


def test_the_help_of_build_fits_on_two_screens(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_main("build", "-h").stdout.splitlines()
    assert len(lines) <= 2 * 24
    rest = lines.index("More options:")
    first = [line.split(",")[0].split()[0] for line in lines[:rest] if line.startswith("  --")]
    assert first == [
        *("--", "--model", "--seqlens", "--input", "--dtype", "--device"),
        *("--problems", "--out", "--budget", "--dry-run"),
    ]


@pytest.mark.usefixtures("files")
def test_a_quiet_command_says_errors_only(run_main: RunMain) -> None:
    merge = ("merge", "t.json", "t.json", "-o", "u.json")
    assert run_main(*merge).stderr == "u.json: 2 rows\n"
    assert run_main(*merge, "-q").stderr == ""
    assert "error: no row" in run_main("show", "-q", "t.json", "--rows", "x").stderr


def test_a_variable_asks_for_the_traceback_with_its_causes(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands above the one line; the exit code is the same."""
    monkeypatch.setenv("WARMUP_DEBUG", "1")
    (tmp_path / "m.py").write_text("import sub_of_m\n")
    (tmp_path / "sub_of_m.py").write_text("import not_a_module_of_anyone\n")
    done = run_main("build", "--model", "m.py", "--seqlens", "4")
    assert done.returncode == 3
    assert "No module named 'not_a_module_of_anyone'" in done.stderr.splitlines()[-1]
    assert 'sub_of_m.py", line 1' in done.stderr
    assert "direct cause of the following" in done.stderr
    monkeypatch.setenv("WARMUP_DEBUG", "0")
    assert "Traceback" not in run_main("show", "absent.json").stderr


def test_a_fault_of_warmup_and_ctrl_c_are_told_from_an_error(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault, code, said in (
        (RuntimeError("x"), 70, "error: a fault of warmup (RuntimeError)"),
        (KeyboardInterrupt(), 130, ""),
    ):
        monkeypatch.setattr("warmup.cli.tables.read_folded", Mock(side_effect=fault))
        done = run_main("show", "t.json")
        assert (done.returncode, "Traceback" in done.stderr) == (code, bool(said))
        assert done.stderr.rpartition("Error: x\n")[2].startswith(said)


@pytest.mark.usefixtures("files")
def test_a_cache_folder_that_cannot_be_made_is_one_line(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    """In each command that compiles, before anything is loaded."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(files / "net.py" / "cache"))
    said = f"error: inductor's cache folder {files}/net.py/cache cannot be made: Not a directory;"
    for command in (
        "build --model net.py --seqlens 4",
        "explain --model net.py --seqlens 4,8",
        "compare --model net.py --seqlens 4",
        "bench mm --shapes 4x4x4",
    ):
        done = run_main(*command.split())
        assert (done.returncode, done.stderr[: len(said)], done.stderr.count("\n")) == (3, said, 1)


def test_a_torch_that_is_missing_is_no_fault_of_warmup(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def find_no_torch(name: str, *more: str) -> object:
        return None if name == "torch" else find(name, *more)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", find_no_torch)
    done = run_main("build", "--model", "x.py", "--seqlens", "16")
    said = "error: torch cannot be used here: ModuleNotFoundError: No module named 'torch'; see "
    assert (done.returncode, done.stderr) == (3, f"{said}`warmup doctor`\n")
