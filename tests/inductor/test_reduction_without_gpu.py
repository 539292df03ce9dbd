"""Reductions for the stated H100: persistent or looped as rows say, and both made in a build."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.long

Ask = Callable[..., dict[str, Any]]

INNER = {"case": "layer norm", "r": 768}  # persistent by inductor's rule
LONG = {"case": "rms norm", "r": 4096}  # looped by inductor's rule
CHOICES: dict[str, dict[str, Any]] = {
    "inner": INNER,
    "long": LONG,
    "ranged": {"case": "softmax", "ranged": True},
    "with two outputs": {"case": "norm, and the input of it", "r": 4096},
}
NO_CHOICES: dict[str, dict[str, Any]] = {
    "too long": {"case": "layer norm", "r": 32768},
    "sort": {"case": "sort", "r": 128},
    "scan": {"case": "product of rows", "r": 128},
}


@pytest.fixture(scope="module")
def ask(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ask]:
    """``ask(case="layer norm", way="looped")``: generate the code of a case under a table."""
    done: dict[str, dict[str, Any]] = {}
    with conversation(
        "cuda_reductions.py", tmp_path_factory.mktemp("reductions"), is_forked=False
    ) as generate:

        def ask_once(**case: Any) -> dict[str, Any]:
            spelled = json.dumps(case, sort_keys=True)
            if spelled not in done:
                done[spelled] = generate(**case)
            return done[spelled]

        yield ask_once


def ways(found: dict[str, Any]) -> list[str]:
    """Return how each reduction of the code is made: ``per`` or ``red``."""
    return [name.split("_")[1] for name in found["kernels"]]


def names(found: dict[str, Any]) -> list[str]:
    return [event["name"] for event in found["events"]]


def test_a_row_decides(ask: Ask) -> None:
    """The kernel is persistent or looped as the row says, whatever inductor's rule is."""
    for name, options in CHOICES.items():
        found = {way: ask(**options, way=way) for way in ("persistent", "looped")}
        assert [ways(found["persistent"]), ways(found["looped"])] == [["per"], ["red"]], name
        assert [names(each) for each in found.values()] == [["lookup.hit"]] * 2, name


def test_without_a_row_inductors_rule_decides(ask: Ask) -> None:
    for case, by_rule in ((INNER, "persistent"), (LONG, "looped")):
        found = ask(**case, on_miss="fallback")
        (event,) = found["events"]
        assert (event["name"], event["choice"]) == ("lookup.missed", by_rule), (case, by_rule)
        assert found["code"] == ask(**case, search=False)["code"], (case, by_rule)


def test_a_miss_is_an_error_in_strict_serving(ask: Ask) -> None:
    assert ask(**INNER)["error"].startswith("MissError: no row answers `reduction ")


def test_a_table_of_an_earlier_build_asks_nothing(ask: Ask) -> None:
    """Without ``reduction_search`` in the policy strict serving has no miss and no hit."""
    for case in (INNER, LONG):
        found = ask(**case, search=False)
        assert (found["error"], found["events"], len(found["kernels"])) == (None, [], 1), case


def test_what_inductor_does_not_leave_open_is_not_asked(ask: Ask) -> None:
    """Rows that no persistent kernel can hold, sorts and scans are compiled as without a table."""
    for name, options in NO_CHOICES.items():
        found = ask(**options)
        assert (found["error"], found["events"]) == (None, []), name
        assert found["code"] == ask(**options, search=False)["code"]


def test_a_build_calls_both_kernels(ask: Ask) -> None:
    """Both are generated, compiled and called, first the control: the way by inductor's rule."""
    for case, by_rule in ((INNER, "persistent"), (LONG, "looped")):
        found = ask(**case, on_miss="tune", wins="looped")
        assert found["called"] == {"persistent": None, "looped": None}, (case, by_rule)
        assert found["library"] == by_rule, (case, by_rule)
        is_persistent = by_rule == "persistent"
        assert ["@triton_heuristics.persistent_reduction" in each for each in found["sources"]] == [
            is_persistent,
            not is_persistent,
        ], (case, by_rule)
        assert names(found) == ["problem.tuned"], (case, by_rule)


def test_each_way_has_a_searched_launch_config(ask: Ask) -> None:
    """A search begins at the configs of default mode of each kernel; none of them makes a row."""
    found = ask(**INNER, on_miss="tune", wins="looped")
    persistent, looped = found["configs"]
    assert all(config.startswith("persistent_reduction(") for config in persistent)
    assert all("R0_BLOCK=" in config for config in looped)
    assert names(found) == ["problem.tuned"]


def test_a_looped_kernel_that_cannot_win_is_not_searched_further(ask: Ask) -> None:
    """Where it takes over a quarter longer with each first config, descent asks for no more."""
    for looped_us, is_cut in ((1.2, False), (1.3, True)):
        persistent, looped = ask(**INNER, on_miss="tune", looped_us=looped_us)["searched"]
        assert "descent" in persistent, (looped_us, is_cut)
        assert ("descent" not in looped) == is_cut, (looped_us, is_cut)


def test_what_both_ways_write_can_be_compared(ask: Ask) -> None:
    """Both take the same arguments, and what they wrote is compared tensor by tensor."""
    found = ask(**CHOICES["with two outputs"], on_miss="tune", wins="looped")
    assert found["written"]["looped"] == found["written"]["persistent"]
    assert found["written"]["looped"] == ["(4096, 4096) torch.bfloat16"] * 2


def test_a_build_compiles_what_is_served(ask: Ask) -> None:
    """Generating both kernels first changes nothing in the code of the graph."""
    for case, way in (
        (INNER, "looped"),
        (LONG, "looped"),
        ({"case": "norm of what a sort wrote", "x": 512}, "persistent"),  # written in place
    ):
        built = ask(**case, on_miss="tune", wins=way)
        assert built["code"] == ask(**case, way=way)["code"]
        assert len(built["sources"]) == 2, (case, way)


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


def test_a_key_names_what_is_kept(ask: Ask) -> None:
    """A kernel that also writes its input for others has another key than one that does not."""
    cases = ("norm, and the input of it", "norm of relu")
    both = [ask(case=case, way="looped") for case in cases]
    keys = [each["events"][0]["key"] for each in both]
    assert [key.partition("writes=")[2].partition(" ")[0] for key in keys] == ["bf16,bf16", "bf16"]
