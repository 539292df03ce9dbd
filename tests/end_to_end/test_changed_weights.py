"""Weights that change after a graph has frozen them: the graph is compiled again, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import PROGRAMS, ROOT, answer_of, python_in
from torch import nn

from warmup.inductor import weight_watch

# With the weight that is named.
NOTICED = {
    **dict.fromkeys(("double", "load", "assign", "point_there_and_back", "share"), "gain"),
    **dict.fromkeys(("write_in_inference_mode", "write_to_data", "step_fused"), "gain"),
    "check_in_python": "gain",
    "fill": "shift",
}
# How often inductor compiles, with the graphs that were changed.
COMPILES = {"swap_adapters": 20, "break_the_graph": 4, "change_padded": 3}

Found = dict[str, Any]


def run(folder: Path, *ways: str) -> Found:
    """Return what the program printed, with inductor's caches in *folder*."""
    words = (str(PROGRAMS / "change_weights.py"), *ways)
    found: Found = answer_of(python_in(folder, *words, cwd=ROOT).stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return run(folder)


@pytest.mark.long
def test_every_change_is_compiled_again(found: Found) -> None:
    """The outputs after the change are those of eager mode, and the event names the weight."""
    for way, weight in NOTICED.items():
        case = found[way]
        assert case["error"] < 1e-5, (way, case)
        assert case["moved"] > 0.1, (way, case)
        assert case["compiles"] == 1, (way, case)
        named = [event["weight"] for event in case["events"]]
        assert named == [f"self.{weight}"], (way, case)
    unnoticed = found["write_a_few_values"]  # no counter of torch shows it, as its page says
    assert (unnoticed["error"] > 0.1, unnoticed["compiles"]) == (True, 0)


@pytest.mark.long
def test_only_graphs_of_changed_weights_are_compiled_again(found: Found) -> None:
    """Twenty swaps of an adapter leave one graph, although torch gives up at eight."""
    for way, compiles in COMPILES.items():
        assert found[way]["error"] < 1e-5, (way, found[way])
        assert found[way]["compiles"] == compiles, (way, found[way])
    assert found["swap_adapters"]["graphs"] == 1
    assert found["change_in_threads"] == {"wrong": [], "error": 0.0}


@pytest.mark.long
def test_what_cannot_be_watched_is_said(found: Found) -> None:
    """A caller without guards, and an exception of the watch, which ends no compile."""
    said = "freezing: True without a guard that watches the weights"
    assert found["skip_guards"]["said"] == [said]
    assert found["fail_to_watch"]["error"] < 1e-5
    assert found["fail_to_watch"]["misses"]["internal"] == 1


@pytest.mark.long
def test_strict_serving_refuses_each_call_after_the_change(found: Found) -> None:
    case = found["refuse"]
    assert len(case["said"]) == len(case["events"]) == 3
    for said, event in zip(case["said"], case["events"], strict=True):
        assert "self.gain; load all weights before the first call" in said
        assert event["refused"]
    assert case["error"] < 1e-5


@pytest.mark.long
def test_graphs_from_a_cache_are_watched(found: Found, folder: Path) -> None:
    """Another process finds the graphs and the check compiled, and compiles after the change."""
    again = run(folder, "double", "load")
    assert again["cached"] == 4
    for way in ("double", "load"):
        assert again[way] == found[way]


def make_graph(count: int) -> tuple[list[nn.Parameter], weight_watch._FrozenGraph]:
    weights, graph = (
        [nn.Parameter(torch.zeros(2)) for _ in range(count)],
        weight_watch._FrozenGraph(),
    )
    for index, weight in enumerate(weights):
        graph.add(str(index), weight, weight_watch._state_of(weight), None)
    graph.code = make_graph.__code__
    return weights, graph


def test_a_weight_that_is_gone_is_not_looked_at() -> None:
    """Its memory is no longer torch's, and nothing can change it."""
    weights, graph = make_graph(3)
    check = graph.make_check()
    del weights[1]
    assert check({})
    weights[1].data = torch.ones(2)
    assert graph.changed() == ["2"]
    assert not check({})


def test_an_exception_of_the_loop_in_python_reaches_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A guard that raises would end the user's call; the graph is served, and the log names it."""
    monkeypatch.setattr(weight_watch, "_load_check", lambda _: None)
    _weights, graph = make_graph(1)
    check = graph.make_check()
    monkeypatch.setattr(weight_watch, "_state_of", lambda _tensor: 1 / 0)
    assert check({})
    assert "weight_watch: ZeroDivisionError" in caplog.text
