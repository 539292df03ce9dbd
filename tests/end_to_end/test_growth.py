"""What grows with the layers of a model, and what does not: counts of real builds and a start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, PROGRAMS, answer_of

from warmup.keys.gemm import GEMM

pytestmark = pytest.mark.nightly

SIZES = (8, 12)
LAYERS = 5


@pytest.fixture(scope="module")
def found(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    """What `build_layers` saw: builds of two equal layers and of five, and a start of five."""
    words = (str(PROGRAMS / "build_layers.py"), str(MODELS / "stacked.py"))
    _, said = run_once("layers", *words, ",".join(map(str, SIZES)), **variables)
    counted: dict[str, Any] = answer_of(said)
    return counted


def test_equal_layers_are_measured_once_and_compiled_in_one_bucket(found: dict[str, Any]) -> None:
    """Three of five layers tune every row; the five are compiled once, from rows alone.

    They are served from the table of two. With ``all_layers`` they are in every bucket.
    """
    measured = found["two"]["measured"]
    assert found["five"]["measured"] == measured
    assert (len(measured), min(measured.values()) > 1) == (len(SIZES), True)
    assert found["served"] == {"hits": LAYERS * len(SIZES), "misses": 0}
    assert found["five"]["runs"] == [
        *([3, "tune", 1], [5, "strict", 0]),
        *([3, "tune", 1], [3, "strict", 0]),
    ]
    assert found["five"]["left_out"] == [0, 2]
    assert found["all"]["runs"] == [[3, "tune", 1], [5, "strict", 0]] * len(SIZES)
    assert (found["all"]["left_out"], found["all"]["rows"]) == ([0, 0], found["five"]["rows"])
    assert found["two"]["runs"] == [[2, "tune", 1], [2, "strict", 0]] * len(SIZES)


def test_a_model_that_fails_without_its_layers_is_tuned_whole(found: dict[str, Any]) -> None:
    whole, less = ([5, "tune", 1], [5, "strict", 0]), ([3, "tune", 1], [5, "strict", 0])
    assert found["choosy"]["runs"] == [*less, [3, "tune", 0], *whole]


def test_rows_that_only_fewer_layers_ask_for_do_not_stay(found: dict[str, Any]) -> None:
    """Fewer layers do not stand for all then, and the next bucket is compiled whole as well."""
    counted = found["counted"]
    runs = [[3, "tune", 2], [5, "strict", 0], [5, "tune", 1], [5, "strict", 0]]
    assert counted["runs"] == runs * len(SIZES)
    followed = [GEMM.ingredients(key)["epilogue"].count("sigmoid") for key in counted["rows"]]
    assert sorted(followed) == [0, 0, LAYERS, LAYERS]
    assert sorted(counted["measured"]) == counted["rows"]
