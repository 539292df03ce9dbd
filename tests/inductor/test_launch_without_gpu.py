"""Rows of kind ``launch``: inductor's generated kernels for a stated H100, without a GPU.

Triton compiles; loading, launching and timing are faked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warmup.keys.registry import kind_of

pytestmark = pytest.mark.long

PROGRAM = "cuda_kernels.py"
Result = dict[str, Any]
Ask = Callable[..., Result]

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def build(ask: Ask) -> Result:
    return ask(scenario="build")


@pytest.fixture(scope="module")
def offered(ask: Ask) -> list[str]:
    """The configs that inductor lists for the transposing kernel, in its order."""
    configs: list[str] = ask(scenario="refused")["offered"]
    return configs


def names(result: Result) -> list[str]:
    return [event["name"] for event in result["events"]]


def reasons(result: Result) -> list[str]:
    return [event["reason"] for event in result["events"]]


def config_in(winner: str) -> str:
    """Return ``XBLOCK=16,...`` of ``pointwise(XBLOCK=16,...)``."""
    return winner.partition("(")[2].removesuffix(")")


def check_hit(result: Result) -> str:
    """Return the config of the only hit, which is launched, while nothing is timed."""
    (hit,) = result["events"]
    config = config_in(hit["winner"])
    assert (result["error"], hit["name"]) == (None, "lookup.hit")
    assert (set(result["launched"]), result["timed"]) == ({config}, {})
    return config


def check_miss(result: Result, reason: str, served: str) -> None:
    """Check that there is one miss, that *served* is launched, and that nothing is timed."""
    assert (result["error"], reasons(result)) == (None, [reason])
    assert (set(result["launched"]), result["timed"]) == ({served}, {})


# -- building ----------------------------------------------------------------------------------


def test_a_build_writes_one_row_per_kernel(build: Result) -> None:
    """With a well-formed key and every candidate; the fastest wins, and the kernel runs it."""
    rows = build["rows"]
    assert names(build) == ["problem.tuned"] * 3
    assert len({row["key"] for row in rows}) == 3
    for row in rows:
        kind_of(row["key"]).check(row["key"])
        assert row["tried"] == len(row["timings"]) > 1
        assert row["time_us"] == row["timings"][row["winner"]] == min(row["timings"].values())
    timed = {config_in(one): us for row in rows for one, us in row["timings"].items()}
    assert timed == build["timed"]
    assert set(build["launched"]) == {config_in(row["winner"]) for row in rows}


def test_a_search_tries_inductors_list_first_and_adds_others(
    build: Result, offered: list[str]
) -> None:
    """The grid, coordinate descent and the longer list of max-autotune; counts sum up to all."""
    row = next(row for row in build["rows"] if " y=" in row["key"])
    assert [config_in(winner) for winner in row["timings"]][: len(offered)] == offered
    assert row["searched"]["listed"] == len(offered)
    for row in build["rows"]:
        added = row["searched"]["added"]
        assert added["grid"] == 2
        assert 0 < added["descent"] <= 4
        assert row["searched"]["listed"] + sum(added.values()) == row["tried"]
        assert row["searched"]["left_out"] > 0
        if " r0_=" in row["key"]:
            assert added["listed_longer"] == 4


def test_a_key_is_the_same_elsewhere(ask: Ask, build: Result) -> None:
    """A key has no kernel number, device ordinal or cache folder."""
    there = ask(scenario="elsewhere")
    assert build["names"] != there["names"]
    assert build["folder"] != there["folder"]
    assert {row["key"] for row in build["rows"]} == {row["key"] for row in there["rows"]}


# -- a row answers -----------------------------------------------------------------------------


def test_with_rows_one_config_is_compiled_and_none_is_timed(ask: Ask, build: Result) -> None:
    answered = ask(scenario="answered")
    wanted = [config_in(row["winner"]) for row in build["rows"]]
    assert (answered["error"], answered["compiled"], answered["timed"]) == (None, wanted, {})
    assert answered["launched"] == [config for config in wanted for _ in range(2)]
    assert names(answered) == ["lookup.hit"] * 3


def test_a_config_that_was_not_offered_is_built_or_a_miss(ask: Ask, offered: list[str]) -> None:
    chosen = ask(scenario="chosen")
    for label in ("descent", "stages"):
        config = check_hit(chosen[label])
        assert chosen[label]["compiled"] == [config]
        assert config not in offered, label
    for label, reason in {
        "beyond the bound": "choice_rejected",
        "no power of two": "choice_rejected",
        "too many warps": "choice_rejected",
        "larger than a tensor": "choice_rejected",
        "another argument": "template_changed",
        "an argument less": "template_changed",
    }.items():
        check_miss(chosen[label], reason, offered[0])
        assert chosen[label]["compiled"] == offered[:1], label


def test_a_config_that_does_not_load_is_passed_over(ask: Ask, offered: list[str]) -> None:
    """One miss, and the first config that loads serves, here and from a compile worker."""
    refused = ask(scenario="refused")
    for place in ("", " in a pool"):
        check_miss(refused["row" + place], "choice_rejected", offered[0])
        check_miss(refused["first" + place], "not_in_table", offered[1])


def test_without_a_row_the_first_config_serves_or_strict_serving_stops(
    ask: Ask, build: Result
) -> None:
    """In strict mode a MissError names the kernel, before any compile."""
    missed = ask(scenario="unanswered")["fallback"]
    first = [next(iter(row["timings"])) for row in build["rows"]]
    assert [event["choice"] for event in missed["events"]] == first
    assert reasons(missed) == ["not_in_table"] * 3
    assert missed["compiled"] == [config_in(winner) for winner in first]
    assert missed["timed"] == {}
    strict = ask(scenario="unanswered")["strict"]
    assert strict["error"].startswith("MissError: no row answers `launch triton_poi_fused ")
    assert (strict["compiled"], strict["timed"], strict["launched"]) == ([], {}, [])


def test_a_kernel_with_one_listed_config_is_searched_and_answered(ask: Ask) -> None:
    """A build tries other configs, though default mode would measure nothing.

    A table whose launch configs were searched misses without the row; for a table of an earlier
    build, which has no such rows, there is nothing to decide.
    """
    single = ask(scenario="single")
    (row,) = single["built"]["rows"]
    listed = config_in(next(iter(row["timings"])))
    assert row["searched"]["listed"] == 1
    assert row["tried"] == len(single["built"]["timed"]) > 5
    assert row["time_us"] < row["library_us"] == next(iter(row["timings"].values()))
    for label in ("answered", "answered by an older table"):
        assert check_hit(single[label]) == config_in(row["winner"])
        assert single[label]["compiled"] == [config_in(row["winner"])], label
    check_miss(single["no row"], "not_in_table", listed)
    assert single["no row"]["compiled"] == [listed]
    strict = single["no row, strict"]
    assert strict["error"].startswith("MissError: no row answers `launch ")
    assert strict["compiled"] == []
    older = single["no row in an older table"]
    found = (older["error"], older["events"], older["timed"], older["compiled"])
    assert found == (None, [], {}, [listed])


# -- kernels that live longer than a table -----------------------------------------------------


def test_tables_over_one_kernel_do_not_mix(ask: Ask, offered: list[str]) -> None:
    """Each table gets the config of its own row, none without one, and later loads are as ever."""
    replaced = ask(scenario="replaced")
    assert "XBLOCK=64" not in check_hit(replaced["one"])
    assert "XBLOCK=64" in check_hit(replaced["other"])
    check_miss(replaced["empty"], "not_in_table", offered[0])
    for label in ("tune", "none"):
        assert list(replaced[label]["timed"])[: len(offered)] == offered, label


def test_a_kernel_compiled_earlier_is_decided_at_its_first_call(
    ask: Ask, offered: list[str]
) -> None:
    """By the row's config, compiled unless it is loaded already; without a row by the first."""
    earlier = ask(scenario="earlier")
    for label in ("answered", "offered"):
        config = check_hit(earlier[label])
        assert earlier[label]["compiled"] == ([] if config in offered else [config]), label
    for label, reason in (("unanswered", "not_in_table"), ("impossible", "choice_rejected")):
        check_miss(earlier[label], reason, offered[0])
        assert earlier[label]["compiled"] == [], label
    strict = earlier["strict"]
    assert strict["error"].startswith("MissError: no row answers `launch ")
    assert (strict["timed"], strict["launched"]) == ({}, [])


# -- compile workers and caches ----------------------------------------------------------------


def test_a_compile_worker_gets_the_row_of_its_kernel(ask: Ask, build: Result) -> None:
    """Each kernel is sent with its own row, and the worker compiles only that config."""
    pooled = ask(scenario="pooled")
    answered, descent = pooled["answered"], pooled["descent"]
    wanted = [config_in(row["winner"]) for row in build["rows"]]
    told = [
        ",".join(f"{name}={value}" for name, value in sorted(seed.items()))
        for worker in answered["told"]
        for seed in worker["seeds"]
    ]
    assert told == wanted
    assert [worker["compiled"] for worker in answered["told"]] == [[config] for config in wanted]
    assert (answered["compiled"], answered["timed"]) == ([], {})
    assert names(answered) == ["lookup.hit"] * 3
    # A config that was not offered is compiled in the worker too.
    (worker,) = descent["told"]
    assert worker["compiled"] == ["XBLOCK=32,YBLOCK=512,num_stages=1,num_warps=8"]
    assert check_hit(descent) == worker["compiled"][0]


def test_templates_wait_for_workers_that_start(ask: Ask, build: Result) -> None:
    """Compiled here they would take seconds, one after the other; a small kernel does not wait."""
    name = build["names"]["transpose"]
    starting = ask(scenario="starting")
    assert (starting["template"]["sent"], starting["template"]["compiled"]) == ([name], [])
    assert (starting["pointwise"]["sent"], len(starting["pointwise"]["compiled"])) == ([], 1)


def test_a_compile_worker_gets_no_row_that_it_would_misread(ask: Ask, offered: list[str]) -> None:
    """Without a row for the kernel's blocks the worker compiles all; one miss, the first serves."""
    for label, reason in (("unanswered", "not_in_table"), ("more than blocks", "template_changed")):
        pooled = ask(scenario="pooled")[label]
        assert pooled["told"] == [{"seeds": [], "compiled": offered}], label
        check_miss(pooled, reason, offered[0])
        assert pooled["compiled"] == [], label


def test_a_row_wins_over_inductors_cache_of_tuned_configs(ask: Ask) -> None:
    """Without a row, the config serves that a build left in that cache."""
    from torch._inductor.runtime import autotune_cache

    cached = ask(scenario="cached")
    (reduced,) = cached["reduced"]["compiled"]
    config = check_hit(cached["row"])
    assert config == "XBLOCK=64,YBLOCK=64,num_stages=1,num_warps=8" != reduced
    assert cached["row"]["compiled"] == [config]
    assert (reasons(cached["no row"]), cached["no row"]["timed"]) == (["not_in_table"], {})
    if not hasattr(autotune_cache, "_reconstruct_triton_config"):
        return  # this torch reads back only the configs that it lists itself
    assert cached["no row"]["compiled"] == [cached["built"]]
    assert set(cached["no row"]["launched"]) == {cached["built"]}
