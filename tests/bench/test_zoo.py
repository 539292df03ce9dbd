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


def test_a_race_that_was_ended_begins_anew_from_the_same_build(begin: Any, entry: Any) -> None:
    """What was built stays; the failure is in the file until the race is run to its end."""
    log: list[str] = []
    assert begin(log, fails="race").measure(entry)["failure"] == "the limit ended it"
    done = begin(log).measure(entry)
    assert done["failure"] is None
    assert begin(log).measure(entry) == json.loads(json.dumps(done))  # nothing is measured again
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
