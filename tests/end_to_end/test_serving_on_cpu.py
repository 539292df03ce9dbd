"""Build, serve and audit on CPU with real compiles, each in a process with empty caches."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.core.rows import Family, Row, Winner
from warmup.serving.audit import audit
from warmup.table.store import read, write

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"

Run = Callable[..., dict[str, Any]]


def run_python(folder: Path, *arguments: str, check: bool = True, **extra: str) -> Any:
    """Run Python in a forked process whose caches are in *folder*."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **caches, **extra}
    done = run_forked(*arguments, env=environment, cwd=folder)
    if check:
        assert done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def template_table(
    built: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same table with the C++ template as every winner, whatever this machine prefers.

    The kwargs come from the build's own candidates, so that each row is one that a build on a
    machine where the template is faster would have written.
    """
    path, report = built
    table = read(path)
    rows: dict[str, Row] = {}
    for problem in report["problems"]:
        spelled = next(
            c["choice"] for c in problem["candidates"] if c["choice"].startswith("cpp::")
        )
        uid, _, kwargs = spelled.rstrip(")").partition("(")
        pairs = tuple((n, int(v)) for n, v in (word.split("=") for word in kwargs.split(",")))
        row = table.rows[problem["key"]]
        rows[problem["key"]] = replace(row, winner=Winner(Family.CPP, uid, pairs))
    target = tmp_path_factory.mktemp("template") / "template.json"
    write(target, replace(table, rows=rows))
    return target


def serve_in(folder: Path, table: Path, seqlens: list[int], **case: Any) -> dict[str, Any]:
    """Run tests/programs/serve_mlp.py with a case and return what it printed."""
    log = case.pop("log", None)
    extra = {"WARMUP_AUDIT_LOG": str(log), "WARMUP_LOG_EVENTS": "1"} if log else {}
    text = json.dumps({"table": str(table), "seqlens": seqlens, **case})
    done = run_python(folder, str(PROGRAMS / "serve_mlp.py"), text, **extra)
    result: dict[str, Any] = json.loads(done.stdout.split("RESULT ")[1])
    result["stderr"] = done.stderr
    return result


@pytest.fixture
def serve(tmp_path: Path) -> Run:
    """``serve(table, [16], on_miss="strict")``: `serve_in` a folder of the test's own."""
    return functools.partial(serve_in, tmp_path)


@pytest.fixture(scope="module")
def served_template(
    template_table: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Both buckets served strictly from the C++ template's rows."""
    folder = tmp_path_factory.mktemp("served")
    return serve_in(folder, template_table, [16, 64], on_miss="strict")


def test_a_build_writes_one_row_for_each_problem_of_each_bucket(
    built: tuple[Path, dict[str, Any]],
) -> None:
    """Two problems for each of two buckets, with op, bucket and epilogue in the key."""
    keys = sorted(read(built[0]).rows)
    layout = "f32 a=row b=packed out=f32 fp32=ieee | epilogue"
    assert keys == [
        f"packed_linear m=16 n=1024 k=256 {layout}=gelu_tanh",
        f"packed_linear m=16 n=256 k=1024 {layout}=add(f32[16,256])",
        f"packed_linear m=64 n=1024 k=256 {layout}=gelu_tanh",
        f"packed_linear m=64 n=256 k=1024 {layout}=add(f32[64,256])",
    ]


def test_a_build_reports_every_candidate_with_its_time(
    built: tuple[Path, dict[str, Any]],
) -> None:
    """Each problem lists the C++ template and the library call, both measured."""
    for problem in built[1]["problems"]:
        names = [candidate["choice"].split("(")[0] for candidate in problem["candidates"]]
        assert [name.split("::")[0] for name in names] == ["cpp", "aten"]
        assert all(candidate["time_us"] > 0 for candidate in problem["candidates"])


def test_a_served_model_measures_nothing_and_hits_every_row(
    built: tuple[Path, dict[str, Any]], serve: Run
) -> None:
    """With the table, a forked process asks four times, hits four times and benchmarks nothing."""
    result = serve(built[0], [16, 64], on_miss="strict")
    table = read(built[0])
    assert result["hits"] == dict.fromkeys(table.rows, 1)
    assert (result["misses"], result["unused"], result["benchmarks"]) == ({}, [], {})


def test_a_served_model_agrees_with_eager(served_template: dict[str, Any]) -> None:
    """Outputs served from C++ template rows are within tolerance of eager in every bucket."""
    assert max(served_template["errors"]) < 1e-5


def test_without_a_table_the_same_program_benchmarks(
    built: tuple[Path, dict[str, Any]], serve: Run
) -> None:
    """The counter that reads zero above does count: the control without a table measures."""
    result = serve(built[0], [16], install=False, assign={"freezing": True})
    assert result["benchmarks"]["select:packed_linear"] > 0


def test_template_rows_generate_exactly_the_recorded_candidate(
    template_table: Path, served_template: dict[str, Any]
) -> None:
    """Code is generated for one C++ candidate per decision, and it is the recorded micro-kernel."""
    winners = [row.winner.uid for row in read(template_table).rows.values()]
    assert [f"cpp::{name}" for name in served_template["generated"]] == winners


@pytest.fixture(scope="module")
def library_table(
    built: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same table with the library call as every winner."""
    table = read(built[0])
    library = Winner(Family.EXTERN, "aten::_mkl_linear")
    path = tmp_path_factory.mktemp("library") / "library.json"
    write(path, replace(table, rows={k: replace(r, winner=library) for k, r in table.rows.items()}))
    return path


@pytest.fixture(scope="module")
def host_table(
    built: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same table with winners that the runner-up beats, as a host that limits chooses them."""
    table = read(built[0])
    rows = {
        key: replace(
            row,
            evidence=replace(
                row.evidence,
                host_us=1.0,
                runner_up="aten::x",
                runner_up_us=0.5,
                time_us=1.0,
                flags=(),
            ),
        )
        for key, row in table.rows.items()
    }
    path = tmp_path_factory.mktemp("host") / "host.json"
    write(path, replace(table, rows=rows))
    return path


@pytest.mark.parametrize(
    ("mode", "said"),
    [("reduce-overhead", 1), ("max-autotune", 1), ("max-autotune-no-cudagraphs", 0)],
)
def test_winners_for_the_host_in_cuda_graphs_are_warned_of_once(
    host_table: Path, serve: Run, mode: str, said: int
) -> None:
    """Two compiles in a mode with CUDA graphs warn once of all rows; without graphs none does."""
    warned = serve(host_table, [16, 64], on_miss="strict", mode=mode)["warnings"]
    assert len(warned) == said
    assert all("4 rows of the table have the winner that the host launches" in w for w in warned)


def test_library_rows_generate_no_candidate(library_table: Path, serve: Run) -> None:
    """Where the library call won, no C++ candidate is generated at all."""
    result = serve(library_table, [16, 64], on_miss="strict")
    assert (result["generated"], len(result["hits"])) == ([], 4)


@pytest.mark.parametrize("thread", ["bare", "pool"])
def test_a_table_installed_in_the_main_thread_answers_in_others(
    template_table: Path, serve: Run, thread: str
) -> None:
    """A compile in another thread gets the same answers, with the table's options applied."""
    result = serve(template_table, [16], on_miss="strict", thread=thread)
    assert (len(result["hits"]), result["misses"], result["benchmarks"]) == (2, {}, {})


@pytest.fixture(scope="module")
def fallen_back(library_table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A bucket with rows of the library call, and one without rows; ``log`` has the events."""
    folder = tmp_path_factory.mktemp("fallback")
    log = folder / "audit.jsonl"
    return {**serve_in(folder, library_table, [16, 32], log=log), "log": log}


def test_an_unseen_bucket_falls_back_without_measuring(fallen_back: dict[str, Any]) -> None:
    """fallback: two counted misses, the library call, no candidate, no benchmark, right output."""
    assert fallen_back["reasons"] == {"not_in_table": 2}
    assert (fallen_back["benchmarks"], fallen_back["generated"]) == ({}, [])
    assert max(fallen_back["errors"]) < 1e-5


def test_strict_names_the_nearest_row_and_what_differs(
    built: tuple[Path, dict[str, Any]], serve: Run
) -> None:
    """strict: the error names problem, epilogue, nearest row and the differing ingredient."""
    error = serve(built[0], [48], on_miss="strict")["error"]
    assert error.startswith("MissError: no row answers `packed_linear m=48 n=1024 k=256 f32")
    assert "epilogue=gelu_tanh` (not_in_table)" in error
    assert "differs in m: row 64, here 48" in error


def test_after_close_inductor_measures_again(
    built: tuple[Path, dict[str, Any]], serve: Run
) -> None:
    """After close() the same compile benchmarks as if warmup had never been there."""
    result = serve(built[0], [16], after_close=True)
    assert result["benchmarks"] == {}
    assert result["benchmarks_after_close"]["select:packed_linear"] > 0
    assert result["tag_after_close"] == ""


@pytest.mark.parametrize("place", ["options", "environment"])
def test_a_callers_contradicting_option_is_told(
    built: tuple[Path, dict[str, Any]], serve: Run, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A caller whose own options contradict the policy is warned, with both values."""
    if place == "options":
        result = serve(built[0], [16], options={"max_autotune_gemm_backends": "ATEN"})
    else:
        monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "ATEN")
        result = serve(built[0], [16])
    assert len(result["warnings"]) == 1
    assert (
        "max_autotune_gemm_backends is ATEN here, the table was built with ATEN,CPP"
        in (result["warnings"][0])
    )


def test_the_json_log_and_the_text_log_tell_the_same_story(
    fallen_back: dict[str, Any], tmp_path: Path
) -> None:
    """`audit` reads equal counts from the JSON lines, from the server's own log, and from both."""
    lines, text = fallen_back["log"], tmp_path / "server.log"
    text.write_text("unrelated line\n" + fallen_back["stderr"], encoding="utf-8")
    reports = [audit([lines]), audit([text]), audit([lines, text])]
    assert {(sum(r.hits.values()), r.miss_count, len(r.unused or ())) for r in reports} == {
        (2, 2, 2)
    }
    assert {r.damaged for r in reports} == {0}


def test_a_default_mode_compile_is_answered_too(
    built: tuple[Path, dict[str, Any]], serve: Run
) -> None:
    """The table's own switches stand, so that a server need not change its torch.compile call."""
    result = serve(built[0], [16], mode="default", on_miss="strict")
    assert (sum(result["hits"].values()), result["misses"], result["silent"]) == (2, {}, False)


def test_every_thread_is_answered_and_a_later_backward_too(
    bmm_tables: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two models compiled at once hit in each thread; a backward asks in the thread it runs in."""
    library, _ = bmm_tables
    done = run_python(tmp_path, str(PROGRAMS / "serve_threads.py"), str(library))
    result = json.loads(done.stdout.split("RESULT ")[1])
    assert sorted(key.split("=")[-1] for key in result["served_hits"]) == ["relu", "sigmoid"]
    assert (result["served_misses"], result["benchmarks"]) == ({}, {})
    assert [key.split(" ")[0] for key in result["backward_misses"]] == ["bmm"]
    assert result["gradients"] == [True, True]


def test_a_graph_with_misses_is_not_taken_over_by_a_strict_server(
    bmm_tables: tuple[Path, Path], tmp_path: Path
) -> None:
    """What fallback compiled without a row stays refused when it comes from a warm cache."""
    library, _ = bmm_tables
    empty = tmp_path / "empty.json"
    write(empty, replace(read(library), rows={}))
    (tmp_path / "new").mkdir()

    def serve(on_miss: str, table: Path = empty, folder: Path = tmp_path) -> dict[str, Any]:
        done = run_python(folder, str(PROGRAMS / "serve_bmm.py"), str(table), on_miss)
        served: dict[str, Any] = json.loads(done.stdout.split("RESULT ")[1])
        return served

    first, again, strict = map(serve, ("fallback", "fallback", "strict"))
    ((key, missed),) = first["misses"].items()
    assert missed == 1
    assert (again["from_cache"], again["cached_misses"], again["misses"]) == (1, 1, {})
    assert "(cached_miss); build the bucket" in strict["error"]
    # As advised: with an empty cache folder the key is named, and its row ends the miss.
    assert f"no row answers `{key}`" in serve("strict", folder=tmp_path / "new")["error"]
    built = serve("strict", library)
    assert (built["hits"], built["misses"], "error" in built) == ({key: 1}, {}, False)


def test_a_cached_graph_never_answers_for_another_table(
    bmm_tables: tuple[Path, Path], tmp_path: Path
) -> None:
    """With warm caches a second table is asked; the first one, again, is served from the cache."""
    library, template = bmm_tables
    results = []
    for table in (library, template, library):
        done = run_python(tmp_path, str(PROGRAMS / "serve_bmm.py"), str(table))
        results.append(json.loads(done.stdout.split("RESULT ")[1]))
    asked = [sum(result["hits"].values()) for result in results]
    assert asked == [1, 1, 0]
    assert [result["from_cache"] for result in results] == [0, 0, 1]
    assert [result["cached_decisions"] for result in results] == [0, 0, 1]
    assert not any(result["silent"] or result["misses"] for result in results)
