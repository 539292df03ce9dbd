"""Compiled graphs that were saved under one table and are loaded under another, or under none.

Each loading process is new, and each form of a saved graph is torch's own; see
tests/programs/foreign_graphs.py.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.serving.audit import audit
from warmup.table.store import read

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tests" / "programs" / "foreign_graphs.py")
FORMS = ("aot", "caches", "artifacts")

Saved = tuple[Path, dict[str, Any]]
Tables = tuple[Path, Path]


def run_program(*words: str, prefix: tuple[str, ...] = ()) -> tuple[Any, str]:
    """Run the program in a forked process; return what it printed as JSON, and its stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_forked(*prefix, PROGRAM, *words, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.split("RESULT ")[1]), done.stderr


@pytest.fixture(scope="module")
def saved(bmm_tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A folder of graphs compiled under the table of the library call, and under no table."""
    folder = tmp_path_factory.mktemp("graphs")
    return folder, run_program("save", str(folder), str(bmm_tables[0]))[0]


@pytest.fixture(scope="module")
def under_another(saved: Saved, bmm_tables: Tables) -> dict[str, Any]:
    """What came of loading all graphs under the table of the C++ template, in both modes."""
    words = (str(saved[0]), str(bmm_tables[1]), "fallback", "strict")
    result: dict[str, Any] = run_program("load", *words)[0]
    return result


@pytest.fixture
def digests(bmm_tables: Tables) -> list[str]:
    """The digests of both tables, as events have them."""
    from warmup.table.codec import digest_of

    return [digest_of(read(path))[:16] for path in bmm_tables]


def test_a_graph_of_this_table_is_from_cache(saved: Saved, bmm_tables: Tables) -> None:
    """Under the table that it was compiled under, a graph of any form counts as from cache."""
    result, _ = run_program("load", str(saved[0]), str(bmm_tables[0]))
    expected = {"library_calls": 1, "hits": 0, "from_cache": 1, "foreign": {}}
    assert result["fallback"]["table"] == dict.fromkeys(FORMS, expected)


@pytest.mark.parametrize("form", ["aot", "caches"])
def test_a_graph_of_another_table_is_foreign(
    under_another: dict[str, Any], digests: list[str], form: str
) -> None:
    """Its kernels run, and it counts as foreign under its digest, not as from cache."""
    assert under_another["fallback"]["table"][form] == {
        "library_calls": 1,
        "hits": 0,
        "from_cache": 0,
        "foreign": {digests[0]: 1},
    }


@pytest.mark.parametrize("form", ["aot", "caches"])
def test_a_graph_that_was_compiled_without_a_table_is_foreign(
    under_another: dict[str, Any], form: str
) -> None:
    """It carries no digest, and counts under ``none``."""
    result = under_another["fallback"]["none"][form]
    assert (result["foreign"], result["from_cache"], result["hits"]) == ({"none": 1}, 0, 0)


@pytest.mark.parametrize("compiled", ["table", "none"])
@pytest.mark.parametrize("mode", ["fallback", "strict"])
def test_saved_cache_artifacts_are_not_found_under_another_table(
    under_another: dict[str, Any], mode: str, compiled: str
) -> None:
    """Their keys have the tag, so that inductor compiles the row's kernel; nothing is foreign."""
    expected = {"library_calls": 0, "hits": 1, "from_cache": 0, "foreign": {}}
    assert under_another[mode][compiled]["artifacts"] == expected


@pytest.mark.parametrize("compiled", ["table", "none"])
def test_strict_serving_refuses_a_foreign_file(
    under_another: dict[str, Any], digests: list[str], compiled: str
) -> None:
    """A graph that is loaded by path raises an error with both digests; no kernel runs."""
    result = under_another["strict"][compiled]["aot"]
    under = digests[0] if compiled == "table" else None
    assert result["error"] == [under, digests[1]]
    assert (result["foreign"], "library_calls" in result) == ({under or "none": 1}, False)


@pytest.mark.parametrize("compiled", ["table", "none"])
def test_strict_serving_compiles_a_foreign_graph_of_inductors_cache_again(
    under_another: dict[str, Any], digests: list[str], compiled: str
) -> None:
    """Inductor sees a cache miss: the row's kernel is compiled; the graph is counted once."""
    under = digests[0] if compiled == "table" else "none"
    assert under_another["strict"][compiled]["caches"] == {
        "library_calls": 0,
        "hits": 1,
        "from_cache": 0,
        "foreign": {under: 1},
    }


def test_without_a_table_the_graph_keeps_the_tables_kernels(saved: Saved) -> None:
    """No warmup, no word: kernels of a file, or of caches without the tag, run as they are."""
    result, _ = run_program("load", str(saved[0]), "none")
    forms = result["fallback"]["table"]
    assert [forms[form] for form in ("aot", "caches")] == [{"library_calls": 1}] * 2


def test_freezing_gives_way_to_an_ahead_of_time_compile(saved: Saved) -> None:
    """A table with freezing compiles ahead of time, asks its row, and warns once of the option."""
    assert saved[1]["hits"] == 1
    (warning,) = saved[1]["warnings"]
    assert "freezing is False (an ahead-of-time compile cannot save frozen weights)" in warning


def test_run_counts_a_foreign_graph_of_a_program_that_only_loads(
    saved: Saved, bmm_tables: Tables, digests: list[str], tmp_path: Path
) -> None:
    """The table is installed before the load; the last line and the audit have the graph."""
    log = tmp_path / "audit.jsonl"
    words = ("-m", "warmup", "run", "--table", str(bmm_tables[1]), "--audit-log", str(log), "--")
    result, stderr = run_program(
        "call", str(saved[0] / "table" / "aot"), prefix=(*words, sys.executable)
    )
    assert result == {"library_calls": 1}
    assert f"foreign 1 graph ({digests[0]} 1), processes 1" in stderr.splitlines()[-1]
    assert audit([log]).failures(("foreign",)) == ("foreign",)
