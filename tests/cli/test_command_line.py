"""Wrong uses and conveniences of the command line, one line of a table for each."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import typer
from sample_tables import make_table
from typer.main import get_command

from warmup.cli.app import app
from warmup.core.errors import SettingsError
from warmup.table.codec import encode

Done = subprocess.CompletedProcess[str]
RunMain = Callable[..., Done]
_PLAIN_MODEL = "import torch\nclass Net(torch.nn.Linear):\n    pass\n"
_COMMANDS = [
    (name,)
    for name in sorted(get_command(app).commands)  # type: ignore[attr-defined]
]

# What is typed, the exit code, and how the one line on stderr begins.
_WRONG = [
    ("show", 2, "error: Missing argument 'TABLE'; see"),
    ("show t.json --colour", 2, "error: No such option: --colour; see"),
    ("shw", 2, "error: No such command 'shw'"),
    (
        "explain -- python net.py",
        2,
        "error: Invalid value for '-- COMMAND': a program is not run here: name the module",
    ),
    ("build", 2, "error: Invalid value: give one of --model, --problems, --from-vllm"),
    ("build --search foo --model m.py", 2, "error: Invalid value for '--search': 'foo' is not one"),
    ("build --model m.py --problems p.json --out o.json", 2, "error: Invalid value: give one of"),
    ("build --problems p.json", 2, "error: Invalid value: --problems needs --out"),
    ("build --problems p.json --out o.json --seqlens 1", 2, "error: Invalid value: --problems"),
    (
        "build --model m.py --set tolerance=2",
        2,
        "error: Invalid value: --set tolerance=2: 2 is",
    ),
    ("build --model m.py --set fused_top_k=x", 2, "error: Invalid value: --set fused_top_k=x: "),
    (
        "build --model m.py --set colour=red",
        2,
        "error: Invalid value: --set colour=red: write",
    ),
    ("build --model m.py --set l2=cold --set l2=warm", 2, "error: Invalid value: --set l2 is"),
    (
        "build --model m.py --set after=yes",
        2,
        "error: Invalid value: --set after=yes needs",
    ),
    (
        "build --model m.py --seqlens 1 --dims 2",
        2,
        "error: Invalid value: --seqlens 2: it was",
    ),
    ("build --model m.py --seqlens 16,16", 3, "error: --seqlens: 16 is given more than once"),
    ("build --model m.py --seqlens 0", 3, "error: "),
    ("build --model m.py --seqlens 9..3", 3, "error: "),
    ("build --model m.py", 3, "error: "),
    ("build --model m.py --seqlens 16 --budget 5m", 3, "error: --budget 5m has nothing to"),
    ("build --model m.py --seqlens 16 --policy x", 2, "error: Invalid value for '--policy'"),
    ("build --model m.py --seqlens 16 --input x", 3, "error: "),
    ("build --model m.py --seqlens 16 --out net.py/t.json", 3, "error: --out net.py/t.json: "),
    ("explain --seqlens 1,2", 2, "error: Missing option '--model'"),
    ("suggest --histogram absent.txt", 3, "error: "),
    ("suggest --histogram net.py --max-buckets 99", 3, "error: "),
    ("show absent.json", 3, "error: no table at absent.json"),
    ("show newer.json", 3, "error: newer.json: schema 99 is newer than"),
    ("show .", 3, "error: .: not a valid table: cannot be read: Is a directory"),
    ("audit net.py --table net.py", 3, "error: net.py: not a valid table"),
    ("show t.json --rows bmm", 1, "error: no row of t.json matches --rows bmm; its rows"),
    ("show t.json --rows m=7", 1, "error: no row of t.json matches --rows m=7"),
    ("show t.json --candidates xyz", 1, "error: no row of t.json matches --candidates xyz"),
    ("diff t.json", 2, "error: Missing argument 'B'"),
    ("diff t.json net.py", 3, "error: net.py: not a valid table"),
    ("merge t.json t.json", 2, "error: Missing option '--out' / '-o'"),
    ("merge t.json t.json -o net.py/x.json", 3, "error: net.py/x.json: cannot write"),
    ("merge t.json t.json -o x.json --prefer slower", 2, "error: Invalid value for '--prefer'"),
    ("check t.json --prime", 3, "error: --prime and --model belong together"),
    ("check t.json --on-miss tune --model m.py --prime", 3, "error: --on-miss 'tune' is not for"),
    ("run -- true", 2, "error: Missing option '--table'"),
    ("run --table t.json", 2, "error: Missing argument 'COMMAND"),
    ("audit", 2, "error: Missing argument 'LOG"),
    ("audit absent.log", 3, "error: the log absent.log cannot be read"),
    ("audit net.py --fail-on hits", 3, "error: --fail-on: hits is not something to fail on"),
    ("bench mm --rounds 0", 2, "error: Invalid value for '--rounds'"),
    ("bench nn", 2, "error: Invalid value for 'mm|layers|pad': 'nn' is not one of"),
    ("bench mm softmax", 2, "error: Invalid value: bench mm takes no layers: softmax"),
    ("bench pad --samples 2", 2, "error: Invalid value: bench pad needs --samples and --out"),
    ("bench layers --samples 2", 2, "error: Invalid value: bench layers has no --samples"),
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a table, t.json, and files that are none, net.py and newer.json."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    (tmp_path / "net.py").write_text(_PLAIN_MODEL)
    (tmp_path / "newer.json").write_text('{"schema": 99}')
    return tmp_path


@pytest.mark.usefixtures("files")
def test_a_wrong_use_is_one_line(run_main: RunMain) -> None:
    """It begins with ``error:``, has the documented exit code and no traceback."""
    for typed, code, said in _WRONG:
        done = run_main(*typed.split())
        assert (done.returncode, done.stderr[: len(said)]) == (code, said), typed
        assert (done.stderr.count("\n"), "Traceback" in done.stderr) == (1, False), typed


def test_help_is_short_and_whole(run_main: RunMain) -> None:
    """Each command has -h; no line exceeds 80 columns, no word or type is Python's or cut."""
    for words, flag in product(((), *_COMMANDS), ("-h", "--help")):
        done = run_main(*words, flag)
        lines = done.stdout.splitlines()
        assert (done.returncode, done.stderr, max(map(len, lines)) <= 80) == (0, "", True), (
            words,
            flag,
        )
        assert not re.search(
            r"(?<![A-Z\]}])\.\.\.$|--\S+ <(list|Path)", done.stdout, re.MULTILINE
        ), (words, flag)
        assert lines[-1] == "  Exit codes and errors: docs/reference/errors.md", (words, flag)


def test_the_help_of_build_fits_on_two_screens(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 lines of 80 columns; ten options come first, the rest stands under a heading."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_main("build", "-h").stdout.splitlines()
    assert len(lines) <= 2 * 24
    rest = lines.index("More options:")
    first = [line.split(",")[0].split()[0] for line in lines[:rest] if line.startswith("  --")]
    assert first == [
        *("--", "--model", "--seqlens", "--input", "--dtype", "--device"),
        *("--problems", "--out", "--launch", "--budget", "--dry-run"),
    ]


def test_each_command_has_an_example(run_main: RunMain) -> None:
    for words in _COMMANDS:
        shown = run_main(*words, "-h").stdout
        assert f"\n  Examples:\n    warmup {' '.join(words)}" in shown


def test_the_version_has_a_short_flag(run_main: RunMain) -> None:
    assert run_main("-V").stdout == run_main("--version").stdout


@pytest.mark.usefixtures("files")
def test_a_quiet_command_says_errors_only(run_main: RunMain) -> None:
    """-q drops messages, and keeps failures."""
    merge = ("merge", "t.json", "t.json", "-o", "u.json")
    assert run_main(*merge).stderr == "u.json: 2 rows\n"
    assert run_main(*merge, "-q").stderr == ""
    assert "error: no row" in run_main("show", "-q", "t.json", "--rows", "x").stderr


def test_a_variable_asks_for_the_traceback(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands above the one line; the exit code is the same."""
    monkeypatch.setenv("WARMUP_DEBUG", "1")
    done = run_main("show", "absent.json")
    first, *_, last = done.stderr.splitlines()
    assert (done.returncode, first) == (3, "Traceback (most recent call last):")
    assert last.startswith("error: no table at a")
    monkeypatch.setenv("WARMUP_DEBUG", "0")
    assert "Traceback" not in run_main("show", "absent.json").stderr


def test_a_traceback_has_the_causes(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that fails because of another import shows both."""
    monkeypatch.setenv("WARMUP_DEBUG", "1")
    (tmp_path / "m.py").write_text("import sub_of_m\n")
    (tmp_path / "sub_of_m.py").write_text("import not_a_module_of_anyone\n")
    done = run_main("build", "--model", "m.py", "--seqlens", "4")
    assert "No module named 'not_a_module_of_anyone'" in done.stderr.splitlines()[-1]
    assert 'sub_of_m.py", line 1' in done.stderr
    assert "direct cause of the following" in done.stderr


def test_a_fault_of_warmup_is_told_from_an_error(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_words: object) -> None:
        raise RuntimeError("x")

    monkeypatch.setattr("warmup.cli.tables.read_folded", fail)
    done = run_main("show", "t.json")
    assert (done.returncode, "Traceback" in done.stderr) == (70, True)
    assert done.stderr.splitlines()[-1].startswith("error: a fault of warmup (RuntimeError)")


def test_ctrl_c_is_130(run_main: RunMain, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any command."""

    def fail(*_words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("warmup.cli.tables.read_folded", fail)
    assert run_main("show", "t.json").returncode == 130


@pytest.mark.parametrize(
    "command",
    [
        "build --model net.py --seqlens 4",
        "explain --model net.py --seqlens 4,8",
        "compare --model net.py --seqlens 4",
        "bench mm --shapes 4x4x4",
        "bench layers softmax",
    ],
)
@pytest.mark.usefixtures("files")
def test_a_cache_folder_that_cannot_be_made_is_one_line(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch, files: Path, command: str
) -> None:
    """In each command that compiles, before anything is loaded."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(files / "net.py" / "cache"))
    done = run_main(*command.split())
    said = f"error: inductor's cache folder {files}/net.py/cache cannot be made: Not a directory;"
    assert (done.returncode, done.stderr[: len(said)], done.stderr.count("\n")) == (3, said, 1)


_AS_WARMUP = "import sys; sys.argv[0] = 'warmup'; import warmup.cli; warmup.cli.main()"


def _complete(words: str, number: int) -> str:
    asked = {"_WARMUP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    done = subprocess.run(
        [sys.executable, "-c", _AS_WARMUP],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_bash_completes_commands_and_options() -> None:
    """The shell's own protocol, as the installed completion calls the program."""
    for typed, offered in (("warmup bu", "build"), ("warmup build --dry", "--dry-run")):
        assert offered in _complete(typed, len(typed.split()) - 1).split()


def test_bash_runs_the_completion_that_is_shown() -> None:
    from typer.completion import get_completion_script as script_for

    script = script_for(prog_name="warmup", complete_var="_WARMUP_COMPLETE", shell="bash")  # noqa: S604  its name for the kind of script
    done = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p warmup"],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "_warmup_completion" in done.stdout


def test_a_settings_error_is_no_usage_error() -> None:
    """Ours is a ValueError too; the parser must not take it for a bad parameter."""
    assert not issubclass(SettingsError, typer.BadParameter)


def test_a_torch_that_is_missing_is_no_fault_of_warmup(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names it and the command that says more, with the code of an error."""
    find = importlib.util.find_spec

    def find_no_torch(name: str, *more: str) -> object:
        return None if name == "torch" else find(name, *more)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", find_no_torch)
    done = run_main("build", "--model", "x.py", "--seqlens", "16")
    said = "error: torch cannot be used here: ModuleNotFoundError: No module named 'torch'; see "
    assert (done.returncode, done.stderr) == (3, f"{said}`warmup doctor`\n")
