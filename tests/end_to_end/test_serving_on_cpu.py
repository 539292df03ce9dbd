"""Build, serve and audit on CPU with real compiles, each in a process with empty caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, PROGRAMS, Built, answer_of, python_in

from warmup.core.rows import Family, Row, Winner
from warmup.serving.audit import audit
from warmup.table.store import read, write

BATCHED = f"{MODELS / 'batched.py'}:Batched"
LAYOUT = "f32 a=row b=packed out=f32 fp32=ieee | epilogue"

Run = Callable[..., dict[str, Any]]


def result_of(folder: Path, *words: str, **variables: str) -> dict[str, Any]:
    """Return what a program printed in a forked process whose caches are in *folder*."""
    done = python_in(folder, *words, **variables)
    return {**answer_of(done.stdout), "stderr": done.stderr}


@pytest.fixture
def serve(tmp_path: Path) -> Run:
    """``serve(table, [16], on_miss="strict")``: run serve_mlp.py, and return what it printed."""

    def run(table: Path, seqlens: list[int], **case: Any) -> dict[str, Any]:
        extra = case.pop("env", {})
        text = json.dumps({"table": str(table), "seqlens": seqlens, **case})
        return result_of(tmp_path, str(PROGRAMS / "serve_mlp.py"), text, **extra)

    return run


def with_rows(built: Built, path: Path, change: Callable[[str, Row], Row]) -> Path:
    table = read(built[0])
    write(path, replace(table, rows={key: change(key, row) for key, row in table.rows.items()}))
    return path


@pytest.fixture(scope="module")
def template_table(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built table with the C++ template as every winner, whatever this machine prefers."""
    # The kwargs come from the build's own candidates, so that each row is one that a build on a
    # machine where the template is faster would have written.
    offered = {
        problem["key"]: next(
            each["choice"] for each in problem["candidates"] if each["choice"].startswith("cpp::")
        )
        for problem in built[1]["problems"]
    }

    def change(key: str, row: Row) -> Row:
        uid, _, kwargs = offered[key].rstrip(")").partition("(")
        pairs = tuple((n, int(v)) for n, v in (word.split("=") for word in kwargs.split(",")))
        return replace(row, winner=Winner(Family.CPP, uid, pairs))

    return with_rows(built, tmp_path_factory.mktemp("template") / "template.json", change)


def test_a_build_writes_one_row_for_each_problem_of_each_bucket(built: Built) -> None:
    assert sorted(read(built[0]).rows) == [
        f"packed_linear m=16 n=1024 k=256 {LAYOUT}=gelu_tanh",
        f"packed_linear m=16 n=256 k=1024 {LAYOUT}=add(f32[16,256])",
        f"packed_linear m=64 n=1024 k=256 {LAYOUT}=gelu_tanh",
        f"packed_linear m=64 n=256 k=1024 {LAYOUT}=add(f32[64,256])",
    ]
    for problem in built[1]["problems"]:
        families = [each["choice"].split("::")[0] for each in problem["candidates"]]
        assert families == ["cpp", "aten"], problem["key"]
        assert all(each["time_us"] > 0 for each in problem["candidates"]), problem["key"]


def test_a_served_model_measures_nothing_and_hits_every_row(built: Built, serve: Run) -> None:
    """In default mode too: the table's switches stand, and the server changes no call."""
    result = serve(built[0], [16, 64], on_miss="strict", mode="default")
    assert result["hits"] == dict.fromkeys(read(built[0]).rows, 1)
    assert (result["misses"], result["unused"], result["benchmarks"]) == ({}, [], {})


def test_template_rows_generate_exactly_the_recorded_candidate(
    template_table: Path, serve: Run
) -> None:
    """One C++ candidate per decision, and outputs of eager; compiled in a thread of a pool."""
    result = serve(template_table, [16, 64], on_miss="strict", thread="pool")
    winners = [row.winner.uid for row in read(template_table).rows.values()]
    assert [f"cpp::{name}" for name in result["generated"]] == winners
    assert (len(result["hits"]), result["misses"], result["benchmarks"]) == (4, {}, {})
    assert max(result["errors"]) < 1e-5


def test_an_unseen_bucket_falls_back_without_measuring(
    built: Built, serve: Run, tmp_path: Path
) -> None:
    """Two counted misses, the library call, no candidate, no benchmark, right output.

    `audit` reads equal counts from the JSON lines, from the server's own log, and from both.
    """
    library = Winner(Family.EXTERN, "aten::_mkl_linear")
    table = with_rows(built, tmp_path / "t.json", lambda _, row: replace(row, winner=library))
    lines, text = tmp_path / "audit.jsonl", tmp_path / "server.log"
    env = {"WARMUP_AUDIT_LOG": str(lines), "WARMUP_LOG_EVENTS": "1"}
    result = serve(table, [16, 32], env=env, thread="bare")
    assert (result["reasons"], len(result["hits"])) == ({"not_in_table": 2}, 2)
    assert (result["benchmarks"], result["generated"]) == ({}, [])
    assert max(result["errors"]) < 1e-5
    text.write_text("unrelated line\n" + result["stderr"], encoding="utf-8")
    for logs in ([lines], [text], [lines, text]):
        report = audit(logs)
        counts = (sum(report.hits.values()), report.miss_count, len(report.unused or ()))
        assert (counts, report.damaged) == ((2, 2, 2), 0), logs


def test_strict_names_the_nearest_row_and_what_differs(built: Built, serve: Run) -> None:
    error = serve(built[0], [48], on_miss="strict")["error"]
    assert error.startswith("MissError: no row answers `packed_linear m=48 n=1024 k=256 f32")
    assert "epilogue=gelu_tanh` (not_in_table)" in error
    assert "differs in m: row 64, here 48" in error


def test_after_close_inductor_measures_again(built: Built, serve: Run) -> None:
    """The counter that reads zero while the table is installed does count."""
    result = serve(built[0], [16], after_close=True)
    assert (result["benchmarks"], result["tag_after_close"]) == ({}, "")
    assert result["benchmarks_after_close"]["select:packed_linear"] > 0


def test_a_cached_graph_never_answers_for_another_table(
    bmm_tables: tuple[Path, Path], tmp_path: Path
) -> None:
    """With warm caches a second table is asked; the first, again, is served from the cache."""
    library, template = map(str, bmm_tables)
    results = [
        result_of(tmp_path, str(PROGRAMS / "serve_bmm.py"), table)
        for table in (library, template, library)
    ]
    assert [sum(result["hits"].values()) for result in results] == [1, 1, 0]
    assert [result["from_cache"] for result in results] == [0, 0, 1]
    assert [result["cached_decisions"] for result in results] == [0, 0, 1]
    assert not any(result["silent"] or result["misses"] for result in results)


def test_ranges_are_primed_and_calls_outside_are_audited(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]
) -> None:
    """With --policy range each interval is a bucket, size 1 too, and answered by its row.

    `warmup.compile` then takes one graph for each bucket from the cache, whatever it calls the dim.
    Of calls beyond the last bucket the first, second and fourth are told, none once it is closed;
    they are no misses, and fail an audit on demand.
    """
    program = str(PROGRAMS / "prime_ranges.py")
    _, said = run_once("prime-ranges", program, BATCHED, "table.json", **variables)
    ranges: dict[str, Any] = json.loads(said)
    buckets = ranges["primed"]["buckets"]
    told = [(each["from"], each["bucket"], each["hits"], each["problem"]) for each in buckets]
    assert ranges["code"] == 0
    assert told == [({}, {"seqlen": 1}, 0, None), ({"seqlen": 2}, {"seqlen": 16}, 1, None)]
    assert (ranges["from_cache"], ranges["cached_decisions"]) == (2, 1)
    assert (ranges["hits"], ranges["misses"]) == ({}, {})
    assert ranges["error"] <= 1e-5
    assert ranges["outside"] == {"beyond the last bucket": 8}
    assert "outside     4 calls (beyond 4): no bucket served their sizes" in ranges["audit"]
    assert (ranges["failed"], ranges["passed"]) == (1, 0)


@pytest.mark.long
def test_a_graph_with_misses_is_not_taken_over_by_a_strict_server(
    bmm_tables: tuple[Path, Path], tmp_path: Path
) -> None:
    """What fallback compiled without a row stays refused when it comes from a warm cache."""
    library, empty = bmm_tables[0], tmp_path / "empty.json"
    write(empty, replace(read(library), rows={}))
    (tmp_path / "new").mkdir()

    def serve(on_miss: str, table: Path = empty, folder: Path = tmp_path) -> dict[str, Any]:
        return result_of(folder, str(PROGRAMS / "serve_bmm.py"), str(table), on_miss)

    first, again, strict = map(serve, ("fallback", "fallback", "strict"))
    ((key, missed),) = first["misses"].items()
    assert missed == 1
    assert (again["from_cache"], again["cached_misses"], again["misses"]) == (1, 1, {})
    assert "(cached_miss); build the bucket" in strict["error"]
    # As advised: with an empty cache folder the key is named, and its row ends the miss.
    assert f"no row answers `{key}`" in serve("strict", folder=tmp_path / "new")["error"]
    built = serve("strict", library)
    assert (built["hits"], built["misses"], "error" in built) == ({key: 1}, {}, False)


@pytest.mark.long
def test_a_callers_contradicting_option_is_told(built: Built, serve: Run) -> None:
    (warning,) = serve(built[0], [16], options={"max_autotune_gemm_backends": "ATEN"})["warnings"]
    said = "max_autotune_gemm_backends is ATEN here, the table was built with ATEN,CPP"
    assert said in warning


@pytest.mark.long
def test_every_thread_is_answered_and_a_later_backward_too(
    bmm_tables: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two models compiled at once hit in each thread; a backward asks in the thread it runs in."""
    result = result_of(tmp_path, str(PROGRAMS / "serve_threads.py"), str(bmm_tables[0]))
    assert sorted(key.split("=")[-1] for key in result["served_hits"]) == ["relu", "sigmoid"]
    assert (result["served_misses"], result["benchmarks"]) == ({}, {})
    assert [key.split(" ")[0] for key in result["backward_misses"]] == ["bmm"]
    assert result["gradients"] == [True, True]
