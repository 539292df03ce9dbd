"""Reductions for the stated H100: persistent, looped or split as rows say, and asked in a build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.long

PROGRAM = "cuda_reductions.py"
IS_FORKED = False
Ask = Callable[..., dict[str, Any]]
Case = dict[str, Any]

INNER = {"case": "layer norm", "r": 768}  # persistent by inductor's rule
LONG = {"case": "rms norm", "r": 4096}  # looped by inductor's rule
TWO_OUTPUTS = {"case": "norm, and the input of it", "r": 4096}
BY_RULE = ((INNER, "persistent"), (LONG, "looped"))
# The sizes are those for which the rule makes parts, on a device with 132 SMs.
SPLIT: tuple[Case, ...] = (
    {"case": "row sums", "x": 8, "r": 1 << 20},
    {"case": "mean of rows", "x": 1370, "r": 768},
    {"case": "layer norm", "x": 4, "r": 65536},
    {"case": "rms norm", "x": 4, "r": 65536},
    {"case": "variance", "x": 4, "r": 1 << 18},
    {"case": "largest", "x": 4096, "r": 4096},
)
SUMS = {**SPLIT[0], "splits": True}
# What inductor does not leave open: rows that no persistent kernel can hold, sorts, scans; many or
# short rows, a range of them, and reductions to whole numbers or positions.
CLOSED: tuple[Case, ...] = (
    {"case": "layer norm", "r": 32768},
    {"case": "sort", "r": 128},
    {"case": "product of rows", "r": 128},
)
WHOLE: tuple[Case, ...] = (
    {"case": "row sums", "x": 4096, "r": 1 << 14},
    {"case": "row sums", "x": 8, "r": 4096},
    {"case": "row sums", "x": 64, "r": 1 << 20, "ranged": True},
    {"case": "counted", "x": 8, "r": 1 << 20},
    {"case": "argmax", "x": 8, "r": 1 << 20},
    {"case": "product of rows", "x": 4, "r": 1 << 18},
)


def ways(found: dict[str, Any]) -> list[str]:
    """Return how each reduction of the code is made: ``per`` or ``red``."""
    return [name.split("_")[1] for name in found["kernels"]]


def names(found: dict[str, Any]) -> list[str]:
    return [event["name"] for event in found["events"]]


def test_a_row_decides(ask: Ask) -> None:
    """The kernel is persistent or looped as the row says, whatever inductor's rule is."""
    for case in (INNER, LONG, TWO_OUTPUTS, {"case": "softmax", "ranged": True}):
        for way, prefix in (("persistent", "per"), ("looped", "red")):
            found = ask(**case, way=way)
            assert (ways(found), names(found)) == ([prefix], ["lookup.hit"]), (case, way)


def test_without_a_row_inductors_rule_decides(ask: Ask) -> None:
    """The miss names it; the code is that without a table, and strict serving refuses."""
    for case, by_rule in (*BY_RULE, (SUMS, "split(parts=128)")):
        found = ask(**case, on_miss="fallback")
        (event,) = found["events"]
        assert (event["name"], event["choice"]) == ("lookup.missed", by_rule), case
        assert found["code"] == ask(**{**case, "splits": False}, search=False)["code"], case
    assert ask(**INNER)["error"].startswith("MissError: no row answers `reduction ")
    assert ask(**SUMS)["error"].startswith("MissError: no row answers `split sum ")


def test_a_table_of_an_earlier_build_asks_nothing(ask: Ask) -> None:
    """Without the search in the policy strict serving has no miss and no hit."""
    for case in (INNER, LONG, SPLIT[0]):
        found = ask(**case, search=False)
        assert (found["error"], found["events"]) == (None, []), case


def test_what_inductor_does_not_leave_open_is_not_asked(ask: Ask) -> None:
    """Strict serving has no miss there, and a build no question."""
    for case in CLOSED:
        found = ask(**case)
        assert (found["error"], found["events"]) == (None, []), case
        assert found["code"] == ask(**case, search=False)["code"], case
    for case in WHOLE:
        for on_miss in ("strict", "tune"):
            found = ask(**case, splits=True, on_miss=on_miss)
            assert (found["error"], found["events"], found["questions"]) == (None, [], []), case


# -- persistent or looped ----------------------------------------------------------------------


def test_a_build_calls_both_kernels(ask: Ask) -> None:
    """Both are generated, compiled and called, first the control: the way by inductor's rule."""
    for case, by_rule in BY_RULE:
        found = ask(**case, on_miss="tune", wins="looped")
        persistent = "@triton_heuristics.persistent_reduction"
        is_first = by_rule == "persistent"
        assert found["called"] == {"persistent": None, "looped": None}, case
        assert found["library"] == by_rule, case
        assert [persistent in each for each in found["sources"]] == [is_first, not is_first], case
        assert names(found) == ["problem.tuned"], case


def test_a_build_compiles_what_is_served(ask: Ask) -> None:
    """Generating both kernels first changes nothing in the code of the graph."""
    for case, way in (
        (INNER, "looped"),
        (LONG, "looped"),
        ({"case": "norm of what a sort wrote", "x": 512}, "persistent"),  # written in place
    ):
        built = ask(**case, on_miss="tune", wins=way)
        assert built["code"] == ask(**case, way=way)["code"], case
        assert len(built["sources"]) == 2, case


def test_a_way_that_does_not_load_cannot_win(ask: Ask) -> None:
    found = ask(case="rms norm", r=640, on_miss="tune", wins="looped", refuse=True)
    assert found["called"]["persistent"] is None
    assert "OutOfResources" in found["called"]["looped"]
    assert ways(found) == ["per"]


def test_a_key_does_not_depend_on_the_rest_of_the_graph(ask: Ask) -> None:
    """Two equal norms of one graph, with other buffers around them, ask by the same key."""
    found = ask(case="norm of a norm", way="looped")
    (key,) = {event["key"] for event in found["events"]}
    assert len(found["events"]) == 2
    assert key.startswith("reduction sum x=4096 r=768 hint=inner reads=bf16,bf16 writes=bf16 body=")
    # A kernel that also writes its input for others has another key than one that does not.
    for case, writes in (("norm, and the input of it", "bf16,bf16"), ("norm of relu", "bf16")):
        (event,) = ask(case=case, way="looped")["events"]
        assert event["key"].partition("writes=")[2].partition(" ")[0] == writes, case


# -- split reductions --------------------------------------------------------------------------


def test_a_row_decides_the_number_of_parts(ask: Ask) -> None:
    """One part is a single kernel; others are as many kernels as by the rule, not split again."""
    for case in SPLIT:
        by_rule = ask(**case, splits=True, on_miss="fallback")
        for parts in (1, 2, 64):
            found = ask(**case, splits=True, parts=parts)
            kernels = 1 if parts == 1 else len(by_rule["kernels"])
            assert names(found) == ["lookup.hit"], (case, parts)
            assert len(found["kernels"]) == kernels, (case, parts)
            assert found["code"] != by_rule["code"], (case, parts)
        assert len(by_rule["kernels"]) > 1, case


def test_a_build_asks_with_the_region(ask: Ask) -> None:
    """The rule's number of parts is compiled meanwhile, and is the first of four ways."""
    for case in SPLIT:
        found = ask(**case, splits=True, on_miss="tune")
        ((key, ways, steps),) = (tuple(each.values()) for each in found["questions"])
        rule = int(key.partition("rule=")[2].partition(" ")[0])
        expected = dict.fromkeys((rule, 1, rule // 2, rule * 2))
        assert ways == [f"split(parts={parts})" for parts in expected], case
        assert found["code"] == ask(**case, splits=True, on_miss="fallback")["code"], case
        has_rows_again = case["case"] in ("layer norm", "rms norm")
        assert key.endswith("input=again" if has_rows_again else "input=once"), case
        assert len(steps) > 1 or case["case"] == "mean of rows", case


def test_a_row_that_cannot_be_forced_is_a_miss(ask: Ask) -> None:
    """A number of parts that leaves nothing to reduce is refused, and the rule decides."""
    (event,) = ask(**SUMS, parts=1 << 20, on_miss="fallback")["events"]
    assert (event["name"], event["reason"]) == ("lookup.missed", "choice_rejected")
