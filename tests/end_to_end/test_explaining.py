"""`warmup explain` in processes of its own: real guards of real models, compiled on this CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

MODELS = str(Path(__file__).resolve().parents[1] / "programs/models/explained.py")
RunOnce = Callable[..., tuple[Path, str]]
Explain = Callable[..., Any]


@pytest.fixture
def explain(run_once: RunOnce) -> Explain:
    """``explain("Doubles")``: the first section without gradients, as JSON."""

    def run(name: str, *words: str) -> Any:
        _, said = run_once(f"explain-{name}", *_words(name), "--no-grad", "--json", *words)
        return json.loads(said)["sections"][0]

    return run


def _words(name: str) -> tuple[str, ...]:
    target = f"{MODELS}:{name}"
    asked = ("--seqlens", "16,64,256", "--device", "cpu")
    return ("-m", "warmup", "explain", "--model", target, *asked)


def spans_of(section: Any, graph: int = 0) -> list[Any]:
    spans: list[Any] = section["graphs"][graph]["spans"]
    return spans


def test_a_comparison_in_the_model_is_found_with_its_line(explain: Explain) -> None:
    """The ranges end at 100 and 101, for the line of the model that compares."""
    first, second = spans_of(explain("Doubles"))
    assert (first["low"], first["high"], first["tuned_at"], first["sizes"]) == (
        2,
        100,
        16,
        [16, 64],
    )
    assert (second["low"], second["high"], second["tuned_at"]) == (101, None, 256)
    cause = first["high_cause"]
    assert cause["kind"] == second["low_cause"]["kind"] == "model"
    assert cause["user"]["path"] == MODELS
    line = Path(MODELS).read_text().splitlines()[cause["user"]["line"] - 1]
    assert "x.shape[0] > 100" in line


def test_the_smallest_dynamic_size_is_a_hard_limit(explain: Explain) -> None:
    """2 comes from 0/1 specialisation, and names the function in torch that says so."""
    cause = spans_of(explain("Doubles"))[0]["low_cause"]
    assert cause["kind"] == "limit"
    assert cause["place"]["path"] == "torch/fx/experimental/symbolic_shapes.py"


def test_a_model_that_breaks_has_ranges_for_each_graph(explain: Explain) -> None:
    """The graph behind a break is compiled for one size, then once more for all."""
    section = explain("Breaks")
    assert [len(graph["spans"]) for graph in section["graphs"]] == [1, 2]
    fixed = next(span for span in spans_of(section, 1) if span["low"] == span["high"])
    assert fixed["tuned_at"] == 16


def test_sizes_left_out_inside_a_range_are_found(explain: Explain) -> None:
    """17, which nobody asked about, is compiled, since the first artifact takes multiples of 8."""
    section = explain("Blocks")
    assert section["tried"] == [16, 64, 256, 17]
    conditions = {
        condition["expression"] for span in spans_of(section) for condition in span["conditions"]
    }
    assert conditions == {"Eq(Mod(seqlen, 8), 0)", "Ne(Mod(seqlen, 8), 0)"}


def test_a_dim_that_turns_out_static_is_told(explain: Explain) -> None:
    """Every size has an artifact of its own, whose guard is named, and the search ends."""
    section = explain("Each", "--max-compiles", "5")
    spans = spans_of(section)
    assert [(span["low"], span["high"]) for span in spans] == [
        (size, size) for size in (16, 17, 18, 64, 256)
    ]
    assert section["uncovered"] == 19
    assert {span["low_cause"]["kind"] for span in spans} == {"model"}


def test_text_and_picture_say_the_ranges(run_once: RunOnce) -> None:
    """Both ways are told by default, in 80 columns; the SVG is well formed and has the ranges."""
    pytest.importorskip("matplotlib")
    folder, said = run_once("explain-both", *_words("Doubles"), "--svg", "ranges.svg")
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80 + len(MODELS)  # a path is not folded
    assert "seqlen, inference: 2 artifacts" in lines
    assert any(line.startswith("seqlen, training: ") for line in lines)
    root = ET.fromstring((folder / "ranges.svg").read_text())  # noqa: S314  our own file
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("2..100, compiled at 16") == 2


def test_one_size_is_an_error(run_python: Callable[..., Any]) -> None:
    """A single size asks about no range."""
    done = run_python("-m", "warmup", "explain", "--model", f"{MODELS}:Each", "--seqlens", "16")
    assert done.returncode == 3
    assert "give two sizes or more" in done.stderr


def test_a_size_that_the_model_refuses_is_named(run_python: Callable[..., Any]) -> None:
    """The error says at which size the model failed, and with what."""
    done = run_python(*_words("Fails"), "--no-grad")
    assert done.returncode == 3
    assert (
        "seqlen=256: the model does not compile or run (ValueError: too many rows)" in done.stderr
    )
