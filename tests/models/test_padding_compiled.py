"""A padded model under torch.compile, in a process of its own with empty caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def said(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> Any:
    """What the program said of a padded model that it compiled."""
    program = ROOT / "tests" / "programs" / "compile_padded.py"
    return json.loads(run_once("compile-padded", str(program), **variables)[1])


@pytest.mark.parametrize("frozen", ["plain", "frozen", "in part"])
def test_compiled_agrees_with_eager(said: Any, frozen: str) -> None:
    """A SwiGLU, a tied head and a patch embedding give what they gave unpadded and uncompiled."""
    assert said[frozen]["padded"] == 5
    assert said[frozen]["error"] <= 1e-5


@pytest.mark.parametrize("frozen", ["plain", "frozen", "in part"])
def test_it_is_one_graph(said: Any, frozen: str) -> None:
    """No graph break, and no recompile for other values."""
    assert said[frozen]["graphs"] == 1


def test_padding_an_activation_is_fused_into_what_makes_it(said: Any) -> None:
    """The kernel that computes tanh writes its result padded; nothing else pads."""
    pads = [name for name in said["plain"]["kernels"] if "constant_pad_nd" in name]
    assert len(pads) == 1
    assert "tanh" in pads[0]


def test_products_are_of_the_padded_sizes(said: Any) -> None:
    """No product has an unaligned size any more."""
    assert said["plain"]["weights"] == [[32, 32], [48, 32], [48, 32], [32, 48], [104, 32]]


def test_a_head_that_serves_these_rows_as_it_is_has_its_own_size(said: Any) -> None:
    """The product is the one of a model that is not prepared; the others stay padded."""
    assert said["in part"]["weights"] == [[32, 32], [48, 32], [48, 32], [32, 48], [101, 32]]


def test_a_frozen_model_has_the_padded_weights_as_constants(said: Any) -> None:
    """They are not inputs of the graph, so kernels may pack them ahead of time."""
    assert said["frozen"]["weights"] == []
