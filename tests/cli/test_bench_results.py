"""What the two `bench` commands leave in a folder, and what they say of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import typer

pytest.importorskip("matplotlib")

from warmup.cli.bench_results import BenchResults
from warmup.core.errors import SettingsError

Report = dict[str, int]


def results(folder: Path | None, *, charts: bool = True) -> BenchResults[Report]:
    def draw(report: Report, into: Path) -> tuple[Path, ...]:
        made = tuple(into / f"{name}.svg" for name in report)
        for path in made:
            path.touch()
        return made

    return BenchResults(folder, "bench-x", dict, draw, charts)


def test_what_is_measured_so_far_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document holds the last report, in a folder that was not there; nothing is said."""
    kept = results(tmp_path / "out")
    kept.keep({"a": 1})
    kept.keep({"a": 1, "b": 2})
    (path,) = (tmp_path / "out").iterdir()
    assert (path.name, json.loads(path.read_text())) == ("bench-x.json", {"a": 1, "b": 2})
    assert capsys.readouterr() == ("", "")


def test_each_file_that_was_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end the document and every chart are there, and stderr names each, in one form."""
    results(tmp_path).finish({"a": 1, "b": 2})
    names = ["bench-x.json", "a.svg", "b.svg"]
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert capsys.readouterr().err == "".join(f"wrote {tmp_path / name}\n" for name in names)


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No --out: no file where the command runs, and nothing is said to be kept."""
    monkeypatch.chdir(tmp_path)
    one = results(None)
    one.keep({"a": 1})
    one.finish({"a": 1})
    one.interrupted()
    said = "interrupted: the finished shapes are printed\n"
    assert (list(tmp_path.iterdir()), capsys.readouterr().err) == ([], said)


def test_an_interrupted_benchmark_says_where_its_shapes_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --out the line names the folder; before the first shape there is nothing."""
    one = results(tmp_path)
    one.interrupted()
    one.keep({"a": 1})
    one.interrupted()
    assert capsys.readouterr().err.splitlines() == [
        "interrupted: no shape was finished",
        f"interrupted: finished shapes are printed, and in {tmp_path}",
    ]


def test_an_interrupted_benchmark_prints_its_finished_shapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C after a first shape: its report is on stdout, and the code is 130."""

    def bench(*, say: Callable[[str], None], keep: Callable[[Report], None]) -> NoReturn:
        keep({"a": 1})
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        results(None).run(bench, lambda report: [f"{len(report)} shape"], as_json=False)
    assert (ended.value.exit_code, capsys.readouterr().out) == (130, "1 shape\n")


def test_a_benchmark_that_fails_prints_its_finished_shapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error at the second shape: the report of the first is on stdout, and the error goes on."""

    def bench(*, say: Callable[[str], None], keep: Callable[[Report], None]) -> NoReturn:
        keep({"a": 1})
        raise SettingsError("its operands cannot be made")

    with pytest.raises(SettingsError, match="operands"):
        results(None).run(bench, lambda report: [f"{len(report)} shape"], as_json=False)
    assert capsys.readouterr().out == "1 shape\n"


def test_without_charts_none_is_drawn_and_matplotlib_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--no-charts leaves the document alone in the folder."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    results(tmp_path, charts=False).finish({"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["bench-x.json"]


def test_charts_that_cannot_be_drawn_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib --out is refused before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match="matplotlib"):
        results(tmp_path)
