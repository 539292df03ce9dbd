"""A row kind that stands in a test program goes through everything warmup does with rows.

The program `toy_kind.py` holds its words and hooks, and adds one entry to the registry; no module
of warmup knows it. Real compiles on CPU, in one fresh process; commands run inside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import codes_of

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "toy_kind.py"
OF_8 = "toy cat m=8 widths=32,32 f32"
OF_16 = "toy cat m=16 widths=32,32 f32"


@pytest.fixture(scope="module")
def toy(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    _, said = run_once("toy", str(PROGRAM), **variables)
    found: dict[str, Any] = json.loads(said.split("RESULT ")[1])
    return found


def test_a_build_tunes_it_into_a_section_of_its_own(toy: dict[str, Any]) -> None:
    """Both candidates are timed; read back, the table has the digest that the build reported."""
    assert (toy["key"], len(toy["built"]), list(toy["stored"])) == (OF_8, 1, ["toy"])
    row = toy["stored"]["toy"][OF_8]
    assert (row["evidence"]["tried"], row["evidence"]["rejected"]) == (2, {})
    assert min(row["evidence"]["library_us"], row["evidence"]["runner_up_us"]) > 0
    assert row["winner"]["uid"] == toy["built"][0]
    reported, read_back = toy["digests"]
    assert reported == read_back


def test_commands_show_and_check_it(toy: dict[str, Any]) -> None:
    """`show` has a grid for the kind and filters it by words; `check` counts it."""
    (head, row) = toy["shown"]["printed"].splitlines()[1:3]
    assert head.split()[:2] == ["toy", "winner"]
    assert row.startswith("cat m=8 widths=32,32 f32 ")
    assert row.split()[4] == toy["built"][0]
    for bucket, shown in (("8", 1), ("9", 0)):
        assert f"\n{shown} of 1 row" in toy["filtered"][bucket]["printed"], bucket
    assert toy["checked"]["code"] == 0
    assert "rows      1 (toy 1)\n" in toy["checked"]["printed"]


def test_serving_hits_it(toy: dict[str, Any]) -> None:
    """The row decides what is compiled, is an event, and goes with the graph into the cache."""
    assert (toy["hit"]["hits"], toy["hit"]["misses"]) == ({OF_8: 1}, {})
    assert "error" not in toy["hit"]
    event = toy["hit event"]
    assert (event["kind"], event["key"], event["winner"]) == ("toy", OF_8, toy["built"][0])
    kernels = toy["kernels by winner"]
    assert kernels["one_pointwise_kernel"] < kernels["kernel_for_each_part"]
    assert (toy["from cache"]["hits"], toy["from cache"]["cached"]) == ({}, 1)


def test_a_size_without_a_row_is_missed(toy: dict[str, Any]) -> None:
    """The library default is compiled; the event names the nearest row; the row of 8 is unused."""
    missed, event = toy["missed"], toy["miss event"]
    assert (missed["hits"], missed["misses"], "error" in missed) == ({}, {OF_16: 1}, False)
    assert missed["kernels"] == toy["kernels by winner"]["kernel_for_each_part"]
    assert missed["unused"] == [OF_8]
    assert (event["kind"], event["key"], event["reason"]) == ("toy", OF_16, "not_in_table")
    assert (event["nearest"], event["differs"]) == (OF_8, ["m: row 8, here 16"])
    assert event["choice"] == "kernel_for_each_part"


def test_strict_serving_refuses_a_miss(toy: dict[str, Any]) -> None:
    """Also that of a cached graph, for the decision it carries."""
    error = toy["refused"]["error"]
    assert f"no row answers `{OF_16}` (not_in_table); nearest row `{OF_8}`" in error
    assert "(cached_miss)" in toy["refused from cache"]["error"]


def test_what_no_key_can_spell_is_a_miss(toy: dict[str, Any]) -> None:
    """Rows concatenated below each other have no key: a miss of this kind, not described."""
    event = toy["event without a key"]
    assert (event["kind"], event["reason"]) == ("toy", "not_described")
    assert event["key"] == "toy (not columns of float32)"


def test_the_audit_counts_hits_misses_and_unused_rows(toy: dict[str, Any]) -> None:
    """By key; what ``--misses-out`` wrote names the missed key and its kind."""
    report = json.loads(toy["audited"]["printed"])
    assert (report["hits"], report["unused"]) == ({OF_8: 1}, [])
    assert [(miss["key"], miss["reason"]) for miss in report["misses"]] == [(OF_16, "not_in_table")]
    assert f"\nunused {OF_8}\n" in toy["unused"]["printed"]
    assert toy["misses"] == [{"count": 1, "key": OF_16, "kind": "toy", "reason": "not_in_table"}]


def test_a_missed_problem_is_rebuilt_without_the_model(toy: dict[str, Any]) -> None:
    """`build --problems` tunes exactly the missed key, and prints bucket, key and kind."""
    assert toy["rebuilt"]["code"] in codes_of(["build"])
    assert {kind: list(rows) for kind, rows in toy["rebuilt rows"].items()} == {"toy": [OF_16]}
    lines = toy["rebuilt"]["printed"].splitlines()
    (words,) = (line.split() for line in lines if line.startswith("m=16 "))
    assert words[:7] == ["m=16", "cat", "m=16", "widths=32,32", "f32", "toy", words[6]]
    assert words[6] == toy["rebuilt rows"]["toy"][OF_16]["winner"]["uid"]


def test_a_merged_table_serves_both_sizes(toy: dict[str, Any]) -> None:
    """`warmup merge` writes a table with the rows of both; served strictly, each size hits."""
    assert (toy["merged"]["code"], toy["merged rows"]) == (0, [OF_16, OF_8])
    assert [found["hits"] for found in toy["served both"]] == [{OF_8: 1}, {OF_16: 1}]
    assert not any("error" in found for found in toy["served both"])
