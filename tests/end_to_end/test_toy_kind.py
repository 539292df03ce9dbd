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

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "toy_kind.py"
OF_8 = "toy cat m=8 widths=32,32 f32"
OF_16 = "toy cat m=16 widths=32,32 f32"


@pytest.fixture(scope="module")
def toy(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    """What each step of the program gave."""
    _, said = run_once("toy", str(PROGRAM), **variables)
    found: dict[str, Any] = json.loads(said.split("RESULT ")[1])
    return found


def test_a_build_tunes_it(toy: dict[str, Any]) -> None:
    """`warmup.build` asks for the key of the model's one concatenation, and has its row."""
    assert (toy["key"], len(toy["built"])) == (OF_8, 1)


def test_both_candidates_are_timed(toy: dict[str, Any]) -> None:
    """The row's evidence has a time of the library default and one of the other candidate."""
    evidence = toy["stored"]["toy"][OF_8]["evidence"]
    assert (evidence["tried"], evidence["rejected"]) == (2, {})
    assert min(evidence["library_us"], evidence["runner_up_us"]) > 0


def test_the_table_has_a_section_for_it(toy: dict[str, Any]) -> None:
    """The row stands in the JSON document under the kind's name, with the winner of the build."""
    assert list(toy["stored"]) == ["toy"]
    assert toy["stored"]["toy"][OF_8]["winner"]["uid"] == toy["built"][0]


def test_the_table_is_read_back_with_its_digest(toy: dict[str, Any]) -> None:
    """Read back, the table has the digest that the build reported."""
    reported, read_back = toy["digests"]
    assert reported == read_back


def test_show_prints_it(toy: dict[str, Any]) -> None:
    """`warmup show` prints a grid for the kind: the key without its kind, the winner, times."""
    (head, row) = toy["shown"]["printed"].splitlines()[1:3]
    assert head.split()[:2] == ["toy", "winner"]
    assert row.startswith("cat m=8 widths=32,32 f32 ")
    assert row.split()[4] == toy["built"][0]


def test_show_filters_it(toy: dict[str, Any]) -> None:
    """``--op`` and ``--bucket`` look at the ingredients ``op`` and ``m`` of this kind too."""
    for bucket, shown in (("8", 1), ("9", 0)):
        assert f"\n{shown} of 1 row" in toy["filtered"][bucket]["printed"]


def test_check_counts_it(toy: dict[str, Any]) -> None:
    """`warmup check` finds the table ready and counts its rows by kind."""
    assert toy["checked"]["code"] == 0
    assert "rows      1 (toy 1)\n" in toy["checked"]["printed"]


def test_serving_hits_it(toy: dict[str, Any]) -> None:
    """Served strictly from the table the model asks once, and the row answers."""
    assert (toy["hit"]["hits"], toy["hit"]["misses"]) == ({OF_8: 1}, {})
    assert "error" not in toy["hit"]


def test_a_hit_is_an_event_of_the_kind(toy: dict[str, Any]) -> None:
    """The audit log has ``lookup.hit`` with the kind, the key and the winner of the row."""
    event = toy["hit event"]
    assert (event["kind"], event["key"], event["winner"]) == ("toy", OF_8, toy["built"][0])


def test_the_row_decides_what_is_compiled(toy: dict[str, Any]) -> None:
    """With a row for one pointwise kernel inductor generates fewer kernels than with the other."""
    kernels = toy["kernels by winner"]
    assert kernels["one_pointwise_kernel"] < kernels["kernel_for_each_part"]


def test_a_cached_graph_carries_its_decision(toy: dict[str, Any]) -> None:
    """Compiled again with warm caches, the graph asks nothing and reports the decision it has."""
    assert (toy["from cache"]["hits"], toy["from cache"]["cached"]) == ({}, 1)


def test_a_size_without_a_row_is_missed(toy: dict[str, Any]) -> None:
    """Another size is a miss, and the library default, a kernel for each part, is compiled."""
    missed = toy["missed"]
    assert (missed["hits"], missed["misses"], "error" in missed) == ({}, {OF_16: 1}, False)
    assert missed["kernels"] == toy["kernels by winner"]["kernel_for_each_part"]


def test_serving_reports_a_row_that_was_not_asked_for(toy: dict[str, Any]) -> None:
    """The handle of the server that asked for 16 alone lists the row of 8 as unused."""
    assert toy["missed"]["unused"] == [OF_8]


def test_a_miss_names_the_nearest_row(toy: dict[str, Any]) -> None:
    """The event has the kind, the reason, the nearest row, what differs and what was compiled."""
    event = toy["miss event"]
    assert (event["kind"], event["key"], event["reason"]) == ("toy", OF_16, "not_in_table")
    assert (event["nearest"], event["differs"]) == (OF_8, ["m: row 8, here 16"])
    assert event["choice"] == "kernel_for_each_part"


def test_strict_serving_refuses_a_miss(toy: dict[str, Any]) -> None:
    """With ``on_miss="strict"`` the miss is an error that names the key and the nearest row."""
    error = toy["refused"]["error"]
    assert f"no row answers `{OF_16}` (not_in_table); nearest row `{OF_8}`" in error


def test_strict_serving_refuses_a_cached_miss(toy: dict[str, Any]) -> None:
    """A cached graph that was compiled with the miss is refused for the decision it carries."""
    assert "(cached_miss)" in toy["refused from cache"]["error"]


def test_what_no_key_can_spell_is_a_miss(toy: dict[str, Any]) -> None:
    """Rows concatenated below each other have no key: a miss of this kind, not described."""
    event = toy["event without a key"]
    assert (event["kind"], event["reason"]) == ("toy", "not_described")
    assert event["key"] == "toy (not columns of float32)"


def test_the_audit_counts_hits_and_misses(toy: dict[str, Any]) -> None:
    """`warmup audit` of both logs counts the hit and the miss by key."""
    report = json.loads(toy["audited"]["printed"])
    assert report["hits"] == {OF_8: 1}
    assert [(miss["key"], miss["reason"]) for miss in report["misses"]] == [(OF_16, "not_in_table")]


def test_the_audit_finds_unused_rows(toy: dict[str, Any]) -> None:
    """The row of 8 is unused in the log of the server that asked for 16 alone."""
    assert f"\nunused {OF_8}\n" in toy["unused"]["printed"]
    assert json.loads(toy["audited"]["printed"])["unused"] == []


def test_the_misses_document_has_its_kind(toy: dict[str, Any]) -> None:
    """What ``--misses-out`` wrote names the missed key and its kind."""
    assert toy["misses"] == [{"count": 1, "key": OF_16, "kind": "toy", "reason": "not_in_table"}]


def test_a_missed_problem_is_rebuilt_without_the_model(toy: dict[str, Any]) -> None:
    """`warmup build --problems` tunes exactly the missed key."""
    assert toy["rebuilt"]["code"] in codes_of(["build"])
    assert {kind: list(rows) for kind, rows in toy["rebuilt rows"].items()} == {"toy": [OF_16]}


def test_the_closing_table_of_a_build_prints_it(toy: dict[str, Any]) -> None:
    """A build prints the bucket, the key and, where others have their epilogue, the kind."""
    words = toy["rebuilt"]["printed"].splitlines()[1].split()
    assert words[:7] == ["m=16", "cat", "m=16", "widths=32,32", "f32", "toy", words[6]]
    assert words[6] == toy["rebuilt rows"]["toy"][OF_16]["winner"]["uid"]


def test_two_tables_are_merged(toy: dict[str, Any]) -> None:
    """`warmup merge` writes a table with the rows of both."""
    assert (toy["merged"]["code"], toy["merged rows"]) == (0, [OF_16, OF_8])


def test_the_merged_table_serves_both_sizes(toy: dict[str, Any]) -> None:
    """Served strictly from the merged table, each size has its hit."""
    assert [found["hits"] for found in toy["served both"]] == [{OF_8: 1}, {OF_16: 1}]
    assert not any("error" in found for found in toy["served both"])
