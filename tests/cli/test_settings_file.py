"""The settings file of a project: which is read, what it may hold, and what overrules it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.cli.settings_file import effective
from warmup.table import Table
from warmup.table.codec import encode

RunMain = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path, make_table: Callable[..., Table]) -> Path:
    """A folder with a table, t.json."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    return tmp_path


def _rows(done: subprocess.CompletedProcess[str]) -> int:
    return len(json.loads(done.stdout)["rows"]["gemm"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("warmup.toml", "[show]\nbucket = 560\njson = true\n"),
        ("warmup.toml", "json = true\n[show]\nbucket = '560'\n"),
        ("pyproject.toml", "[tool.warmup.show]\nbucket = 560\njson = true\n"),
        ("pyproject.toml", "[tool.warmup]\njson = true\n[tool.warmup.show]\nbucket = 560\n"),
    ],
)
def test_a_setting_is_the_default_of_an_option(
    run_main: RunMain, folder: Path, name: str, text: str
) -> None:
    """For one command or for all that have the option, in either file."""
    (folder / name).write_text(text)
    assert _rows(run_main("show", "t.json")) == 1


def test_the_command_line_overrules_the_file(run_main: RunMain, folder: Path) -> None:
    """What is typed wins."""
    (folder / "warmup.toml").write_text("json = true\n[show]\nbucket = 7\n")
    assert _rows(run_main("show", "t.json", "--bucket", "1024")) == 1


def test_a_command_overrules_what_is_set_for_all(run_main: RunMain, folder: Path) -> None:
    """The nearer section wins."""
    (folder / "warmup.toml").write_text("json = true\n[show]\njson = false\n")
    assert run_main("show", "t.json").stdout.splitlines()[-1].startswith("2 of 2 rows")


@pytest.mark.parametrize(
    "names",
    [("compare", "table", "WARMUP_TABLE"), ("run", "audit-log", "WARMUP_AUDIT_LOG")],
    ids=" ".join,
)
def test_a_variable_overrules_the_file(
    run_main: RunMain,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, str, str],
) -> None:
    """Command line, then variable, then file: help shows the default that is left."""
    command, option, variable = names
    (folder / "warmup.toml").write_text(f"[{command}]\n{option} = 'from-file'\n")
    monkeypatch.delenv(variable, raising=False)
    assert "[default: from-file]" in " ".join(run_main(command, "-h").stdout.split())
    monkeypatch.setenv(variable, "x")
    assert "from-file" not in run_main(command, "-h").stdout


def test_its_own_file_comes_before_pyproject(run_main: RunMain, folder: Path) -> None:
    """With warmup.toml the section of pyproject.toml is not read, and -v names the file."""
    (folder / "warmup.toml").write_text("[show]\nbucket = 560\n")
    (folder / "pyproject.toml").write_text("[tool.warmup.show]\nnonsense = 1\n")
    done = run_main("show", "t.json", "-v")
    assert (done.returncode, done.stderr) == (0, "settings: warmup.toml\n")


def test_a_pyproject_of_others_is_left_alone(run_main: RunMain, folder: Path) -> None:
    """Without a section of warmup's there are no settings, and -v names no file."""
    (folder / "pyproject.toml").write_text("[tool.other]\nnonsense = 1\n")
    done = run_main("show", "t.json", "-v")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = 'm'\nmodle = 'm.py'\n", "warmup.toml:2: modle: is no option that a file may set"),
        ("[build]\nserch = 'wide'\n", "warmup.toml:2: build.serch: is no option of warmup build"),
        ("[biuld]\nsearch = 'wide'\n", "warmup.toml:1: biuld: is no command that a file may set"),
        ("[bench]\nrounds = 3\n", "warmup.toml:2: bench.rounds: is no option of warmup bench"),
        ("[bench.mm]\nround = 3\n", "warmup.toml:2: bench.mm.round: is no option of"),
        ("json = 'yes'\n", "warmup.toml:1: json: 'yes' is not true or false; write one"),
        ("seqlens = [1, [2]]\n", "warmup.toml:1: seqlens: [1, [2]] is no value; write a text"),
        ("seqlens = {a = 1}\n", "warmup.toml:1: seqlens: is no command that a file may set"),
        ("out = 2026-01-01\n", "warmup.toml:1: out: datetime.date(2026, 1, 1) is no value"),
        ("debug = true\n", "warmup.toml:1: debug: is no option that a file may set"),
        ("[check]\nbundle = 'b'\n", "warmup.toml:2: check.bundle: is no option of warmup check"),
        ("model: x\n", "warmup.toml: not TOML: "),
        ("\x00", "warmup.toml: not TOML: "),
    ],
)
def test_what_no_option_takes_is_refused(
    run_main: RunMain, folder: Path, text: str, said: str
) -> None:
    """The error names the file, the line and the key, whatever command is run."""
    (folder / "warmup.toml").write_text(text)
    done = run_main("show", "t.json")
    assert (done.returncode, done.stderr[: len(said) + 7]) == (3, f"error: {said}")
    assert done.stderr.count("\n") == 1


def test_the_nearest_name_is_offered(run_main: RunMain, folder: Path) -> None:
    """Underscores for dashes and slips of the pen."""
    (folder / "warmup.toml").write_text("[build]\npad_weights = true\n")
    assert run_main("show", "t.json").stderr.rstrip().endswith("; use pad-weights")


def test_a_value_that_the_option_refuses_names_the_file(run_main: RunMain, folder: Path) -> None:
    """The parser's own error, of the command that has the option."""
    (folder / "warmup.toml").write_text("[build]\nsearch = 'wied'\n")
    done = run_main("build", "--model", "m.py")
    said = "error: warmup.toml: Invalid value for '--search': 'wied' is not one of"
    assert (done.returncode, done.stderr[: len(said)]) == (2, said)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (2**20 + 1)])
def test_a_file_that_cannot_be_read_is_one_line(
    run_main: RunMain, folder: Path, content: bytes
) -> None:
    """Not UTF-8, or far too large."""
    (folder / "warmup.toml").write_bytes(content)
    done = run_main("show", "t.json")
    assert (done.returncode, done.stderr[:19], done.stderr.count("\n")) == (
        3,
        "error: warmup.toml:",
        1,
    )


@pytest.mark.parametrize(
    ("given", "typed", "left"),
    [
        ({"model": "m", "problems": "p"}, {"problems"}, {"model": None, "problems": "p"}),
        ({"seqlens": "1", "dims": ["b=1"]}, {"dims"}, {"seqlens": None, "dims": ["b=1"]}),
        ({"seqlens": "1", "dims": ["b=1"]}, set(), {"seqlens": "1", "dims": ["b=1"]}),
        ({"model": "m", "prime": False}, set(), {"model": None, "prime": False}),
        ({"model": "m", "prime": True}, {"prime"}, {"model": "m", "prime": True}),
        ({"model": "m", "prime": False}, {"model"}, {"model": "m", "prime": False}),
    ],
)
def test_a_typed_option_replaces_settings_that_contradict_it(
    given: dict[str, Any], typed: set[str], left: dict[str, Any]
) -> None:
    """So that `build --problems` works in a project whose settings name a model."""
    sources = {name: "COMMANDLINE" if name in typed else "DEFAULT_MAP" for name in given}
    assert effective(given, sources, dict.fromkeys(given)) == left


def test_lists_become_one_option_or_several(run_main: RunMain, folder: Path) -> None:
    """A list is joined by commas, except for an option that is repeatable."""
    (folder / "warmup.toml").write_text("seqlens = [560, 1024]\ndims = ['batch=1,2', 'batch=4']\n")
    shown = " ".join(run_main("explain", "-h").stdout.split())
    assert "[default: 560,1024]" in shown
    assert "[default: batch=1,2, batch=4]" in shown
