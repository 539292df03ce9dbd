"""Rows of kind ``launch``: inductor's generated kernels for a stated H100, without a GPU.

Two processes run tests/programs/cuda_kernels.py: the first builds and then serves every scenario,
the second only builds, in another folder. Triton compiles; loading, launching and timing are faked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.registry import check_key

pytestmark = pytest.mark.long

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
PROGRAM = str(PROGRAMS / "cuda_kernels.py")
SCENARIOS = [
    "answered",
    "unanswered",
    "chosen",
    "refused",
    "replaced",
    "earlier",
    "descending",
    "pooled",
    "kept",
    "cached",
    "single",
]
Result = dict[str, Any]
Run = Callable[..., Any]

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def results(run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> Result:
    case = json.dumps({"scenarios": SCENARIOS})
    found: Result = run_program(tmp_path_factory.mktemp("here"), PROGRAM, case)
    return found


@pytest.fixture(scope="module")
def elsewhere(run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The results of a build of the same kernels on another device ordinal."""
    case = json.dumps({"device": 1, "backwards": True, "grid": 0, "descent": 0})
    found: Result = run_program(tmp_path_factory.mktemp("elsewhere"), PROGRAM, case)
    return found


def names(result: Result) -> list[str]:
    return [event["name"] for event in result["events"]]


def reasons(result: Result) -> list[str]:
    return [event["reason"] for event in result["events"]]


def config_in(winner: str) -> str:
    """Return ``XBLOCK=16,...`` of ``pointwise(XBLOCK=16,...)``."""
    return winner.partition("(")[2].removesuffix(")")


def config_of(row: Result) -> str:
    return config_in(row["winner"])


# -- building ----------------------------------------------------------------------------------


def test_a_build_writes_one_row_per_kernel(results: Result) -> None:
    """Each kernel with several configs gives one row, with a well-formed key."""
    rows = results["build"]["rows"]
    assert names(results["build"]) == ["problem.tuned"] * 3
    assert len({row["key"] for row in rows}) == 3
    for row in rows:
        check_key(row["key"])


def test_a_row_has_every_candidate_and_the_fastest_wins(results: Result) -> None:
    build = results["build"]
    for row in build["rows"]:
        assert row["tried"] == len(row["timings"]) > 1
        assert row["time_us"] == row["timings"][row["winner"]] == min(row["timings"].values())
    timed = {config_in(one): us for row in build["rows"] for one, us in row["timings"].items()}
    assert timed == build["timed"]


def test_every_config_of_default_mode_is_tried_first(results: Result) -> None:
    """A search begins with the configs that inductor lists for the kernel, in its order."""
    row = next(row for row in results["build"]["rows"] if " y=" in row["key"])
    offered = results["refused"]["offered"]
    assert [config_in(winner) for winner in row["timings"]][: len(offered)] == offered
    assert row["searched"]["listed"] == len(offered)


def test_a_search_has_configs_that_inductor_lists_nowhere(results: Result) -> None:
    """The grid and coordinate descent add configs, and the counts of a row sum up to all tried."""
    for row in results["build"]["rows"]:
        added = row["searched"]["added"]
        assert added["grid"] == 2
        assert 0 < added["descent"] <= 4
        assert row["searched"]["listed"] + sum(added.values()) == row["tried"]
        assert row["searched"]["left_out"] > 0


def test_a_search_has_what_inductor_lists_under_max_autotune(results: Result) -> None:
    """A build in default mode tries the longer list of a reduction too."""
    (row,) = (row for row in results["build"]["rows"] if " r0_=" in row["key"])
    assert row["searched"]["added"]["listed_longer"] == 4


def test_the_built_kernel_runs_its_winner(results: Result) -> None:
    """After a build, each kernel launches the config that its row names."""
    build = results["build"]
    assert set(build["launched"]) == {config_of(row) for row in build["rows"]}


def test_a_key_is_the_same_elsewhere(results: Result, elsewhere: Result) -> None:
    """A key has no kernel number, device ordinal or cache folder."""
    here, there = results["build"], elsewhere["build"]
    assert here["names"] != there["names"]
    assert here["folder"] != there["folder"]
    assert {row["key"] for row in here["rows"]} == {row["key"] for row in there["rows"]}


# -- a row answers -----------------------------------------------------------------------------


def test_with_rows_one_config_is_compiled_and_none_is_timed(results: Result) -> None:
    """Each kernel compiles exactly its row's config, launches it, and gives one hit."""
    answered = results["answered"]
    wanted = [config_of(row) for row in results["build"]["rows"]]
    assert answered["error"] is None
    assert answered["compiled"] == wanted
    assert answered["launched"] == [config for config in wanted for _ in range(2)]
    assert answered["timed"] == {}
    assert names(answered) == ["lookup.hit"] * 3


@pytest.mark.parametrize("label", ["descent", "stages"])
def test_a_config_that_was_not_offered_is_built(results: Result, label: str) -> None:
    chosen = results["chosen"][label]
    (hit,) = chosen["events"]
    assert hit["name"] == "lookup.hit"
    assert chosen["compiled"] == [config_in(hit["winner"])]
    assert set(chosen["launched"]) == {config_in(hit["winner"])}
    assert config_in(hit["winner"]) not in results["refused"]["offered"]


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("beyond the bound", "choice_rejected"),
        ("no power of two", "choice_rejected"),
        ("too many warps", "choice_rejected"),
        ("larger than a tensor", "choice_rejected"),
        ("another argument", "template_changed"),
        ("an argument less", "template_changed"),
    ],
)
def test_an_impossible_config_is_a_miss(results: Result, label: str, reason: str) -> None:
    chosen = results["chosen"][label]
    assert chosen["error"] is None
    assert reasons(chosen) == [reason]
    assert chosen["compiled"] == results["refused"]["offered"][:1]
    assert chosen["timed"] == {}


@pytest.mark.parametrize("place", ["", " in a pool"], ids=["here", "pool"])
def test_a_row_whose_kernel_does_not_load_is_a_miss(results: Result, place: str) -> None:
    """A config that the device refuses to load is one miss, and the first config serves."""
    refused = results["refused"]["row" + place]
    assert refused["error"] is None
    assert reasons(refused) == ["choice_rejected"]
    assert set(refused["launched"]) == {results["refused"]["offered"][0]}


@pytest.mark.parametrize("place", ["", " in a pool"], ids=["here", "pool"])
def test_a_first_config_that_does_not_load_is_passed_over(results: Result, place: str) -> None:
    """Without a row the first config that loads serves, as without a table."""
    refused = results["refused"]["first" + place]
    assert refused["error"] is None
    assert reasons(refused) == ["not_in_table"]
    assert set(refused["launched"]) == {results["refused"]["offered"][1]}


# -- no row answers ----------------------------------------------------------------------------


def test_without_a_row_the_first_config_serves(results: Result) -> None:
    missed = results["unanswered"]["fallback"]
    first = [next(iter(row["timings"])) for row in results["build"]["rows"]]
    assert [event["choice"] for event in missed["events"]] == first
    assert reasons(missed) == ["not_in_table"] * 3
    assert missed["compiled"] == [config_in(winner) for winner in first]
    assert missed["timed"] == {}


def test_without_a_row_strict_serving_stops_before_compiling(results: Result) -> None:
    """In strict mode a MissError names the kernel, before any compile."""
    missed = results["unanswered"]["strict"]
    assert missed["error"].startswith("MissError: no row answers `launch triton_poi_fused ")
    assert (missed["compiled"], missed["timed"], missed["launched"]) == ([], {}, [])


# -- kernels for which inductor lists one config -------------------------------------------------


def test_a_kernel_with_one_listed_config_is_searched(results: Result) -> None:
    """A build tries other configs and writes a row, though default mode would measure nothing."""
    built = results["single"]["built"]
    (row,) = built["rows"]
    assert row["searched"]["listed"] == 1
    assert row["tried"] == len(built["timed"]) > 5
    assert row["time_us"] < row["library_us"] == next(iter(row["timings"].values()))
    assert built["launched"] == [config_of(row)] * 2


@pytest.mark.parametrize("label", ["answered", "answered by an older table"])
def test_the_row_of_a_kernel_with_one_listed_config_answers(results: Result, label: str) -> None:
    """Serving compiles the row's config alone: one hit, and nothing is timed."""
    answered = results["single"][label]
    wanted = config_of(results["single"]["built"]["rows"][0])
    assert (answered["error"], names(answered)) == (None, ["lookup.hit"])
    assert (answered["compiled"], answered["launched"]) == ([wanted], [wanted] * 2)
    assert answered["timed"] == {}


def test_without_its_row_a_searched_table_misses(results: Result) -> None:
    """A table whose launch configs were searched misses, and inductor's config serves."""
    single = results["single"]
    offered = [config_in(next(iter(single["built"]["rows"][0]["timings"])))]
    assert reasons(single["no row"]) == ["not_in_table"]
    assert single["no row"]["compiled"] == offered
    assert single["no row, strict"]["error"].startswith("MissError: no row answers `launch ")
    assert single["no row, strict"]["compiled"] == []


def test_without_its_row_an_older_table_has_nothing_to_decide(results: Result) -> None:
    """A table of an earlier build has no rows of such kernels: no event, inductor's config."""
    older = results["single"]["no row in an older table"]
    offered = [config_in(next(iter(results["single"]["built"]["rows"][0]["timings"])))]
    assert (older["error"], older["events"], older["timed"]) == (None, [], {})
    assert older["compiled"] == offered


# -- kernels that live longer than a table -----------------------------------------------------


@pytest.mark.parametrize("label", ["one", "other", "again"])
def test_tables_over_one_kernel_do_not_mix(results: Result, label: str) -> None:
    """Each table in turn gets the config of its own row from the kernel in memory."""
    replaced = results["replaced"][label]
    (hit,) = replaced["events"]
    assert hit["name"] == "lookup.hit"
    assert set(replaced["launched"]) == {config_in(hit["winner"])}
    assert ("XBLOCK=64" in hit["winner"]) == (label == "other")
    assert replaced["timed"] == {}


def test_a_table_without_the_row_does_not_get_the_last_ones(results: Result) -> None:
    """A table without the row misses and serves the first config, whatever table was before."""
    replaced = results["replaced"]["empty"]
    assert reasons(replaced) == ["not_in_table"]
    assert set(replaced["launched"]) == {results["refused"]["offered"][0]}


@pytest.mark.parametrize("label", ["tune", "none"])
def test_a_closed_table_leaves_nothing_to_later_loads(results: Result, label: str) -> None:
    """Loaded again, in a build or without a table, the kernel times all offered configs."""
    offered = results["refused"]["offered"]
    assert list(results["replaced"][label]["timed"])[: len(offered)] == offered


def test_a_kernel_compiled_earlier_is_answered_at_its_first_call(results: Result) -> None:
    """The row's config is launched: one hit, no timing, and no compile if it is loaded already."""
    offered = results["refused"]["offered"]
    for label in ("answered", "offered"):
        earlier = results["earlier"][label]
        (hit,) = earlier["events"]
        config = config_in(hit["winner"])
        assert hit["name"] == "lookup.hit"
        assert set(earlier["launched"]) == {config}
        assert earlier["timed"] == {}
        assert earlier["compiled"] == ([] if config in offered else [config])


@pytest.mark.parametrize(
    ("label", "reason"), [("unanswered", "not_in_table"), ("impossible", "choice_rejected")]
)
def test_a_kernel_compiled_earlier_is_not_timed_without_its_row(
    results: Result, label: str, reason: str
) -> None:
    """Without its row the first call is one miss, and the first config serves."""
    earlier = results["earlier"][label]
    assert reasons(earlier) == [reason]
    assert set(earlier["launched"]) == {results["refused"]["offered"][0]}
    assert (earlier["timed"], earlier["compiled"]) == ({}, [])


def test_a_kernel_compiled_earlier_stops_strict_serving(results: Result) -> None:
    """Without its row the first call raises, before anything is launched."""
    earlier = results["earlier"]["strict"]
    assert earlier["error"].startswith("MissError: no row answers `launch ")
    assert (earlier["timed"], earlier["launched"]) == ({}, [])


@pytest.mark.parametrize(
    ("label", "first"), [("during", "lookup.missed"), ("answered", "lookup.hit")]
)
def test_coordinate_descent_does_not_run_while_a_table_is_installed(
    results: Result, label: str, first: str
) -> None:
    """A kernel compiled for coordinate descent is a hit or a miss, and is not tuned."""
    descending = results["descending"][label]
    assert names(descending)[:1] == [first]
    assert len([name for name in names(descending) if name.startswith("lookup.")]) == 1
    assert descending["timed"] == {}
    assert set(descending["compiled"]) <= set(descending["launched"])


def test_coordinate_descent_runs_again_after_the_table(results: Result) -> None:
    """Loaded again without a table, the kernel is tuned by coordinate descent."""
    after, fresh = results["descending"]["after"], results["descending"]["fresh"]
    assert len(fresh["timed"]) > len(results["refused"]["offered"])
    assert after["timed"] == fresh["timed"]


def test_a_build_under_coordinate_descent_searches_as_any_build(results: Result) -> None:
    """The row has the fastest config that was tried, though inductor had not offered it."""
    built = results["descending"]["built"]
    winner = config_in(results["descending"]["row"])
    assert names(built) == ["problem.tuned"]
    assert winner not in results["refused"]["offered"]
    assert built["timed"][winner] == min(built["timed"].values())
    assert set(built["launched"]) == {winner}


# -- compile workers ---------------------------------------------------------------------------


def test_a_compile_worker_gets_the_row_of_its_kernel(results: Result) -> None:
    """Each kernel is sent with its own row, and the worker compiles only that config."""
    answered = results["pooled"]["answered"]
    wanted = [config_of(row) for row in results["build"]["rows"]]
    told = [
        ",".join(f"{name}={value}" for name, value in sorted(seed.items()))
        for worker in answered["told"]
        for seed in worker["seeds"]
    ]
    assert told == wanted
    assert [worker["compiled"] for worker in answered["told"]] == [[config] for config in wanted]
    assert (answered["compiled"], answered["timed"]) == ([], {})
    assert names(answered) == ["lookup.hit"] * 3


def test_a_compile_worker_builds_a_config_that_was_not_offered(results: Result) -> None:
    """A config of coordinate descent is compiled in the worker, and is a hit in this process."""
    descent = results["pooled"]["descent"]
    (worker,) = descent["told"]
    assert worker["compiled"] == ["XBLOCK=32,YBLOCK=512,num_stages=1,num_warps=8"]
    assert set(descent["launched"]) == set(worker["compiled"])
    assert names(descent) == ["lookup.hit"]


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("unanswered", "not_in_table"),
        ("more than blocks", "template_changed"),
        ("an argument less", "template_changed"),
    ],
)
def test_a_compile_worker_gets_no_row_that_it_would_misread(
    results: Result, label: str, reason: str
) -> None:
    """Without a row for the kernel's blocks the worker compiles all; one miss, the first serves."""
    pooled = results["pooled"][label]
    offered = results["refused"]["offered"]
    assert pooled["error"] is None
    assert pooled["told"] == [{"seeds": [], "compiled": offered}]
    assert reasons(pooled) == [reason]
    assert set(pooled["launched"]) == {offered[0]}
    assert (pooled["timed"], pooled["compiled"]) == ({}, [])


# -- inductor's own cache of tuned configs -----------------------------------------------------


@pytest.mark.parametrize("label", ["row", "same tag"])
def test_a_row_wins_over_inductors_cache(results: Result, label: str) -> None:
    """A kernel that inductor had reduced to its cached best gets the row's config."""
    reduced = results["cached"]["reduced"]["compiled"]
    row = results["cached"][label]
    assert len(reduced) == 1
    assert row["compiled"] == ["XBLOCK=64,YBLOCK=64,num_stages=1,num_warps=8"] != reduced
    assert set(row["launched"]) == set(row["compiled"])
    assert names(row) == ["lookup.hit"]


@pytest.mark.parametrize("label", ["no row", "in memory"])
def test_a_kernel_tuned_earlier_is_a_miss_without_a_row(results: Result, label: str) -> None:
    cached = results["cached"][label]
    assert reasons(cached) == ["not_in_table"]
    assert cached["timed"] == {}


def test_a_miss_keeps_the_config_in_inductors_cache(results: Result) -> None:
    """Without a row, the config serves that a build left in inductor's cache."""
    from torch._inductor.runtime import autotune_cache

    if not hasattr(autotune_cache, "_reconstruct_triton_config"):
        pytest.skip("this torch reads back only the configs that it lists itself")
    cached = results["cached"]
    assert cached["no row"]["compiled"] == [cached["built"]]
    assert set(cached["no row"]["launched"]) == {cached["built"]}


@pytest.mark.parametrize(("label", "again"), [("kept", 0), ("not kept", 1)])
def test_a_kept_kernel_is_compiled_once(results: Result, label: str, again: int) -> None:
    """The second compile from empty caches takes Triton's kernel, and no code of inductor's."""
    first, second = results["kept"][label]["rounds"]
    assert (first["new"], second["new"]) == (1, again)
    assert (first["code"], second["code"]) == (0, 0)


def test_kept_kernels_are_removed(results: Result) -> None:
    """Their folder is gone at the end, and Triton's own is used again."""
    kept = results["kept"]
    assert [kept["kept"]["is_left"], kept["is_restored"]] == [False, True]


def test_five_or_six_layers_need_the_rows_of_more_layers(run_program: Run, tmp_path: Path) -> None:
    """Kernels between the GEMMs of equal layers repeat every second layer, not sooner."""
    found = run_program(tmp_path, str(PROGRAMS / "cuda_layers.py"), "3,4,5,6,7,8,9")
    assert found["5"] == found["7"] == found["9"] != found["3"]
    assert found["6"] == found["8"] != found["4"]
    assert found["5"] != found["6"]
