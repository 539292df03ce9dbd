"""vLLM itself on a CPU, as it compiles on a GPU: a Llama of two layers with random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from vllm_bench import IN_PROCESS, WITHOUT_PLUGIN, Bench, Served, make_bench

from warmup.table.codec import digest_of
from warmup.table.store import read, write

TINY = """
from torch import nn

def model():
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU())
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("vllm")
    folder.joinpath("tiny.py").write_text(TINY)
    return make_bench(folder)


@pytest.fixture(scope="module")
def unrelated(bench: Bench) -> Path:
    words = ("--device", "cpu", "--model", "tiny.py:model", "--input", "input=[rows,32]:f32")
    bench.warmup("build", *words, "--dims", "rows=2", "--out", "unrelated.json")
    return bench.folder / "unrelated.json"


@pytest.fixture(scope="module")
def captured(bench: Bench, unrelated: Path) -> Served:
    """The engine under the unrelated table, by `warmup run`, without the plugin."""
    return bench.serve("captured", "shared", unrelated, run=True, **WITHOUT_PLUGIN)


@pytest.fixture(scope="module")
def table(bench: Bench, captured: Served) -> Path:
    """A table built from the misses of the engine, without its model."""
    assert captured.audit.miss_count
    log = str(bench.folder / "captured.jsonl")
    bench.warmup("audit", log, "--misses-out", "misses.json")
    words = ("--device", "cpu", "--problems", "misses.json", "--out", "table.json")
    bench.warmup("build", *words)
    return bench.folder / "table.json"


@pytest.fixture(scope="module")
def cold(bench: Bench, table: Path) -> Served:
    """The engine in this one process under its table, with a cache of other graphs only."""
    return bench.serve("cold", "shared", table, **IN_PROCESS)


@pytest.fixture(scope="module")
def warm(bench: Bench, table: Path, cold: Served) -> Served:
    """The engine again, with the graphs of `cold` in its cache."""
    return bench.serve("warm", "shared", table, **IN_PROCESS)


@pytest.fixture(scope="module")
def untabled(bench: Bench) -> Served:
    # VLLM_PLUGINS is a part of vLLM's key as well.
    return bench.serve("untabled", "plain", None, **WITHOUT_PLUGIN, **IN_PROCESS)


def test_one_start_of_the_engine_asks_the_table_of_its_environment(
    bench: Bench, unrelated: Path
) -> None:
    """The test of .ci/run: the plugin has the table in the engine's own process, by its variable.

    Nothing is measured, and each decision that the table has no row for is a miss with its reason.
    """
    served = bench.serve("started", "started", unrelated, **IN_PROCESS)
    assert served.said["benchmarks"] == 0
    assert served.audit.reasons == {"not_in_table": 8, "dynamic_dim": 8}
    assert (served.audit.runs, sum(served.audit.uncovered.values())) == (1, 0)


def test_a_table_from_the_misses_answers_sizes_and_ranges(
    captured: Served, cold: Served, table: Path
) -> None:
    """The static size and the range ask in the engine's own process; after one pass all are hits.

    Rows of the range are for 2 to 128 tokens: torch's smallest dynamic size, the engine's largest.
    """
    assert captured.audit.reasons == {"not_in_table": 8, "dynamic_dim": 8}
    assert cold.audit.miss_count == 0
    assert (sum(cold.audit.hits.values()), cold.audit.runs) == (16, 1)
    assert sum(" m=2..128 " in key for key in read(table).rows) == 4


def test_nothing_is_measured_or_generated_otherwise_under_the_table(
    cold: Served, warm: Served, untabled: Served
) -> None:
    """Without a table vLLM tunes its static size when it starts; with the table it does not."""
    assert untabled.said["benchmarks"] > 0
    assert (cold.said["benchmarks"], sum(cold.audit.uncovered.values())) == (0, 0)
    assert cold.said["tokens"] == warm.said["tokens"] == untabled.said["tokens"]


def test_graphs_of_another_table_are_not_loaded_with_the_plugin(
    bench: Bench, cold: Served, table: Path
) -> None:
    """The digest is in vLLM's key: the cache had graphs of the other table, and all are new."""
    assert (cold.said["loaded"], cold.audit.foreign) == (0, {})
    assert f"warmup-{digest_of(read(table))[:32]}" in bench.keys("shared")


def test_a_second_start_loads_the_tables_own_graphs(cold: Served, warm: Served) -> None:
    """All graphs come from vLLM's cache with their decisions, and none is foreign."""
    assert (warm.said["compiled"], warm.said["loaded"]) == (0, cold.said["compiled"])
    assert warm.audit.cached_decisions == sum(cold.audit.hits.values()) + cold.audit.miss_count
    assert warm.audit.foreign == {}


def test_graphs_of_another_table_or_of_none_are_counted_without_the_plugin(
    bench: Bench, captured: Served, unrelated: Path, untabled: Served, table: Path
) -> None:
    """The key of vLLM alone does not tell tables apart: its cache answers, which is counted."""
    other = bench.serve("other", "shared", table, run=True, **WITHOUT_PLUGIN)
    assert set(other.audit.foreign) == {digest_of(read(unrelated))[:16]}
    assert not other.audit.hits
    late = bench.serve("late", "plain", table, run=True, **WITHOUT_PLUGIN, **IN_PROCESS)
    assert late.audit.foreign == {"none": late.said["loaded"]}
    assert late.said["loaded"] == untabled.said["compiled"]


def test_a_table_that_cannot_be_read_is_reported(bench: Bench, untabled: Served) -> None:
    """The audit and stderr say that the engine has no table, and it serves without."""
    served = bench.serve("absent", "plain", bench.folder / "absent.json", **IN_PROCESS)
    assert "warmup plugin: no table in process" in served.text
    assert (served.audit.runs, served.audit.failed > 0) == (0, True)


def test_frozen_weights_give_way_on_stock_vllm(bench: Bench, unrelated: Path) -> None:
    """Stock vLLM on a CPU saves what it compiles, which frozen weights would end with an error."""
    found = read(unrelated)
    options = {**found.policy.options, "freezing": True}
    frozen = bench.folder / "frozen.json"
    write(frozen, replace(found, policy=replace(found.policy, options=options)))
    served = bench.serve("stock", "stock", frozen, GPULIKE="0", WARMUP_FREEZING="1")
    assert len(served.said["tokens"]) == 2
    assert "an ahead-of-time compile cannot save frozen weights" in served.text
