"""The zoo's program: what it measures again, and what it says of its results; no compiler runs."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = {"rows": 3, "digest": "0", "problems": [], "known": [], "buckets": []}
BUILT |= {"stages": {}, "not_tuned": {}, "distrusted": {}, "unstable": []}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs/benchmarks"))
    names = ("zoo", "zoo_models.entries")
    return {name: importlib.import_module(name) for name in names}


@pytest.fixture
def begin(modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """``begin(log, fails="race")``: a zoo whose programs only say what they would do, in *log*."""

    def make(log: list[str], *, fails: str = "", limit: float = 600.0, **options: Any) -> Any:
        def run(_: Any, words: Sequence[str], said: Path) -> str:
            log.append(said.stem)
            if said.stem == fails:
                raise modules["zoo"].StoppedError("the limit ended it")
            if said.stem == "race":
                Path(words[-1]).write_text('{"launches": {}, "doubts": {}}')
            else:
                Path(words[words.index("--out") + 1]).write_text("{}")
            return json.dumps(BUILT)

        monkeypatch.setattr(modules["zoo"].Zoo, "run", run)
        given: dict[str, Any] = {"out": tmp_path, "limit": limit, "device": "cpu", "rounds": 6}
        given |= {"variants": None, "launch": None, "again": False}
        return modules["zoo"].Zoo(argparse.Namespace(**(given | options)))

    return make


@pytest.fixture
def entry(modules: Any) -> Any:
    return modules["zoo_models.entries"].TINY["vit"]


def test_a_model_that_is_done_is_not_measured_again(begin: Any, entry: Any) -> None:
    """The second call runs nothing, and has the same document."""
    log: list[str] = []
    first = begin(log).measure(entry)
    assert log == ["build", "race"]
    assert begin(log).measure(entry) == json.loads(json.dumps(first))
    assert log == ["build", "race"]


def test_a_race_that_was_ended_begins_anew_from_the_same_build(begin: Any, entry: Any) -> None:
    """What was built stays; the failure is in the file until the race is run to its end."""
    log: list[str] = []
    assert begin(log, fails="race").measure(entry)["failure"] == "the limit ended it"
    assert begin(log).measure(entry)["failure"] is None
    assert log == ["build", "race", "race"]


def test_another_machine_or_source_begins_anew(
    modules: Any, begin: Any, entry: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A build and a race are never of two machines: the table of the first one is removed."""
    log: list[str] = []
    begin(log, fails="race").measure(entry)
    monkeypatch.setattr(modules["zoo"], "machine", lambda: {"boot": "another"})
    stopped = begin(log, fails="build").measure(entry)
    assert log == ["build", "race", "build"]
    assert "race" not in stopped
    assert "rows" not in stopped["builds"]["table"]
    assert not (tmp_path / "vit" / "table.json").exists()


def test_the_limit_ends_a_program(
    modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that outlasts the limit is ended, and with less than a minute left none is begun."""
    zoo = modules["zoo"].Zoo(argparse.Namespace(out=tmp_path, limit=50.0, launch=None))
    with pytest.raises(modules["zoo"].StoppedError, match="left: not begun"):
        zoo.run(["sleep", "60"], tmp_path / "build.log")
    monkeypatch.setattr(modules["zoo"], "_LEAST_S", 0.0)
    zoo.deadline -= 49.5
    with pytest.raises(modules["zoo"].StoppedError, match="the limit ended build"):
        zoo.run(["sleep", "60"], tmp_path / "build.log")


def test_a_program_that_fails_is_told_with_its_last_words(modules: Any, tmp_path: Path) -> None:
    zoo = modules["zoo"].Zoo(argparse.Namespace(out=tmp_path, limit=500.0, launch=None))
    with pytest.raises(modules["zoo"].StoppedError, match="exit code 3: no such model"):
        zoo.run(["sh", "-c", "echo no such model >&2; exit 3"], tmp_path / "race.log")
