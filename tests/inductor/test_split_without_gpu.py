"""Split reductions for the stated H100: asked where inductor's rule splits, and forced by rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.long

Ask = Callable[..., dict[str, Any]]

# The sizes are those for which the rule makes parts, on a device with 132 SMs.
SPLIT: dict[str, dict[str, Any]] = {
    "row sums": {"x": 8, "r": 1 << 20},
    "mean of rows": {"x": 1370, "r": 768},
    "layer norm": {"x": 4, "r": 65536},
    "rms norm": {"x": 4, "r": 65536},
    "variance": {"x": 4, "r": 1 << 18},
    "largest": {"x": 4096, "r": 4096},
}
ALONE: dict[str, dict[str, Any]] = {
    "many rows": {"case": "row sums", "x": 4096, "r": 1 << 14},
    "short rows": {"case": "row sums", "x": 8, "r": 4096},
    "a range of rows": {"case": "row sums", "x": 64, "r": 1 << 20, "ranged": True},
    "whole numbers": {"case": "counted", "x": 8, "r": 1 << 20},
    "positions": {"case": "argmax", "x": 8, "r": 1 << 20},
    "a scan": {"case": "product of rows", "x": 4, "r": 1 << 18},
}


@pytest.fixture(scope="module")
def ask(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ask]:
    """``ask(case="row sums", parts=4)``: generate the code of a case under a table with splits."""
    done: dict[str, dict[str, Any]] = {}
    with conversation("cuda_reductions.py", tmp_path_factory.mktemp("splits")) as generate:

        def ask_once(**case: Any) -> dict[str, Any]:
            case = {"splits": True, **case}
            spelled = json.dumps(case, sort_keys=True)
            if spelled not in done:
                done[spelled] = generate(**case)
            return done[spelled]

        yield ask_once


def names(found: dict[str, Any]) -> list[str]:
    return [event["name"] for event in found["events"]]


def test_a_row_forbids_the_split(ask: Ask) -> None:
    """One part is a single kernel for what inductor's rule makes in two or more."""
    for case, sizes in SPLIT.items():
        by_rule = ask(case=case, **sizes, on_miss="fallback")
        whole = ask(case=case, **sizes, parts=1)
        assert names(whole) == ["lookup.hit"], case
        assert len(whole["kernels"]) == 1 < len(by_rule["kernels"]), case


def test_a_row_decides_the_number_of_parts(ask: Ask) -> None:
    """As many kernels as by the rule, of another size: parts are not split again."""
    for case, parts in product(SPLIT, (2, 64)):
        by_rule = ask(case=case, **SPLIT[case], on_miss="fallback")
        found = ask(case=case, **SPLIT[case], parts=parts)
        assert names(found) == ["lookup.hit"], (case, parts)
        assert len(found["kernels"]) == len(by_rule["kernels"]), (case, parts)
        assert found["code"] != by_rule["code"], (case, parts)


def test_a_build_asks_with_the_region(ask: Ask) -> None:
    """The rule's number of parts is compiled meanwhile, and is the first of four ways."""
    for case, sizes in SPLIT.items():
        found = ask(case=case, **sizes, on_miss="tune")
        ((key, ways, steps),) = (tuple(each.values()) for each in found["questions"])
        rule = int(key.partition("rule=")[2].partition(" ")[0])
        expected = dict.fromkeys((rule, 1, rule // 2, rule * 2))
        assert ways == [f"split(parts={parts})" for parts in expected], case
        assert found["code"] == ask(case=case, **sizes, on_miss="fallback")["code"]
        has_rows_again = case in ("layer norm", "rms norm")
        assert key.endswith("input=again" if has_rows_again else "input=once"), case
        assert len(steps) > 1 or case == "mean of rows"


def test_nothing_is_asked_where_the_rule_alone_decides(ask: Ask) -> None:
    """Strict serving has no miss there, and a build no question."""
    for case, sizes in ALONE.items():
        for on_miss in ("strict", "tune"):
            found = ask(**sizes, on_miss=on_miss)
            assert (found["error"], found["events"], found["questions"]) == (None, [], []), case


def test_without_a_row_the_rule_decides(ask: Ask) -> None:
    """A miss names the rule's number; it is what inductor compiles without a table."""
    sizes = SPLIT["row sums"]
    found = ask(case="row sums", **sizes, on_miss="fallback")
    (event,) = found["events"]
    assert (event["name"], event["choice"]) == ("lookup.missed", "split(parts=128)")
    assert found["code"] == ask(case="row sums", **sizes, splits=False, search=False)["code"]


def test_a_miss_is_an_error_in_strict_serving(ask: Ask) -> None:
    error = ask(case="row sums", **SPLIT["row sums"])["error"]
    assert error.startswith("MissError: no row answers `split sum ")


def test_tables_from_before_splits_are_served(ask: Ask) -> None:
    """Without ``split_search`` in the policy strict serving has no miss and no hit."""
    found = ask(case="row sums", **SPLIT["row sums"], splits=False, search=False)
    assert (found["error"], found["events"]) == (None, [])


def test_a_row_that_cannot_be_forced_is_a_miss(ask: Ask) -> None:
    """A number of parts that leaves nothing to reduce is refused, and the rule decides."""
    found = ask(case="row sums", **SPLIT["row sums"], parts=1 << 20, on_miss="fallback")
    (event,) = found["events"]
    assert (event["name"], event["reason"]) == ("lookup.missed", "choice_rejected")
