"""Compiled graphs that were saved under one table and are loaded under another, or under none.

Each loading process is new, and each form of a saved graph is torch's own; see
tests/programs/foreign_graphs.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS, ROOT, answer_of, python_in

from warmup.serving.audit import audit
from warmup.table.codec import digest_of
from warmup.table.store import read

pytestmark = pytest.mark.long

PROGRAM = str(PROGRAMS / "foreign_graphs.py")
FORMS = ("aot", "caches", "artifacts")

Saved = tuple[Path, dict[str, Any]]
Tables = tuple[Path, Path]


def run_program(folder: Path, *words: str, prefix: tuple[str, ...] = ()) -> tuple[Any, str]:
    """Run the program in a forked process; return what it printed as JSON, and its stderr."""
    done = python_in(folder, *prefix, PROGRAM, *words, cwd=ROOT)
    return answer_of(done.stdout), done.stderr


@pytest.fixture(scope="module")
def saved(bmm_tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A folder of graphs compiled under the table of the library call, and under no table."""
    folder = tmp_path_factory.mktemp("graphs")
    return folder, run_program(folder, "save", str(folder), str(bmm_tables[0]))[0]


@pytest.fixture
def digests(bmm_tables: Tables) -> list[str]:
    return [digest_of(read(path))[:16] for path in bmm_tables]


def counts(calls: int, hits: int = 0, from_cache: int = 0, foreign: str = "") -> dict[str, Any]:
    """``counts(1, foreign="none")``: what a process reports of one loaded graph."""
    found: dict[str, Any] = {"library_calls": calls, "hits": hits, "from_cache": from_cache}
    return {**found, "foreign": {foreign: 1} if foreign else {}}


def test_a_graph_of_this_table_is_from_cache(saved: Saved, bmm_tables: Tables) -> None:
    """Under the table that it was compiled under, a graph of any form counts as from cache."""
    result, _ = run_program(saved[0], "load", str(saved[0]), str(bmm_tables[0]))
    assert result["fallback"]["table"] == dict.fromkeys(FORMS, counts(1, from_cache=1))


def test_a_graph_of_another_table_or_of_none_is_foreign(
    saved: Saved, bmm_tables: Tables, digests: list[str]
) -> None:
    """In fallback its kernels run; strict refuses a file, and compiles one of inductor's cache.

    Saved cache artifacts are not found, since their keys have the tag: nothing is foreign.
    """
    words = (str(saved[0]), str(bmm_tables[1]), "fallback", "strict")
    loaded, _ = run_program(saved[0], "load", *words)
    for compiled, under in (("table", digests[0]), ("none", "none")):
        fallback, strict = loaded["fallback"][compiled], loaded["strict"][compiled]
        for form in ("aot", "caches"):
            found = fallback[form]
            assert (found["foreign"], found["from_cache"], found["hits"]) == ({under: 1}, 0, 0), (
                form
            )
            assert compiled == "none" or found["library_calls"] == 1, form
        assert fallback["artifacts"] == strict["artifacts"] == counts(0, hits=1), compiled
        assert strict["caches"] == counts(0, hits=1, foreign=under), compiled
        refused = strict["aot"]
        assert refused["error"] == [None if under == "none" else under, digests[1]], compiled
        assert (refused["foreign"], "library_calls" in refused) == ({under: 1}, False), compiled


def test_without_a_table_the_graph_keeps_the_tables_kernels(saved: Saved) -> None:
    """No warmup, no word: kernels of a file, or of caches without the tag, run as they are."""
    result, _ = run_program(saved[0], "load", str(saved[0]), "none")
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
    graph = str(saved[0] / "table" / "aot")
    result, stderr = run_program(tmp_path, "call", graph, prefix=(*words, sys.executable))
    assert result == {"library_calls": 1}
    assert f"foreign 1 graph ({digests[0]} 1), processes 1" in stderr.splitlines()[-1]
    assert audit([log]).failures(("foreign",)) == ("foreign",)
