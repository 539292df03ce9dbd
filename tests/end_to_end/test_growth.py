"""What grows with the layers of a model, and what does not: counts of real builds and a start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row

from warmup.core.errors import MissReason
from warmup.core.events import Emitter, Event, Missed
from warmup.core.rows import Row
from warmup.keys.gemm import GEMM
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

pytestmark = pytest.mark.nightly

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
SIZES = (8, 12)
LAYERS = 5


@pytest.fixture(scope="module")
def found(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    """What `build_layers` saw: builds of two equal layers and of five, and a start of five."""
    words = (str(PROGRAMS / "build_layers.py"), str(PROGRAMS / "models" / "stacked.py"))
    _, said = run_once("layers", *words, ",".join(map(str, SIZES)), **variables)
    counted: dict[str, Any] = json.loads(said.splitlines()[-1])
    return counted


def test_equal_layers_are_measured_once(found: dict[str, Any]) -> None:
    """Five equal layers have the candidates of two, and are served from the table of two."""
    measured = found["two"]["measured"]
    assert found["five"]["measured"] == measured
    assert len(measured) == len(SIZES)
    assert min(measured.values()) > 1
    assert found["served"] == {"hits": LAYERS * len(SIZES), "misses": 0}


def test_layers_that_repeat_are_compiled_in_one_bucket(found: dict[str, Any]) -> None:
    """Three of five layers tune every row; the five are compiled once, from rows alone.

    With ``all_layers`` they are in every bucket, and two layers, which do not repeat, too.
    """
    assert found["five"]["runs"] == [
        *([3, "tune", 1], [5, "strict", 0]),
        *([3, "tune", 1], [3, "strict", 0]),
    ]
    assert found["five"]["left_out"] == [0, 2]
    assert found["all"]["runs"] == [[3, "tune", 1], [5, "strict", 0]] * len(SIZES)
    assert (found["all"]["left_out"], found["all"]["rows"]) == ([0, 0], found["five"]["rows"])
    assert found["two"]["runs"] == [[2, "tune", 1], [2, "strict", 0]] * len(SIZES)


def test_a_model_that_fails_without_its_layers_is_tuned_whole(found: dict[str, Any]) -> None:
    """In every bucket, or from the one that fails on, also where that shows after tuning."""
    whole, less = ([5, "tune", 1], [5, "strict", 0]), ([3, "tune", 1], [5, "strict", 0])
    runs = {
        "indexed": [[3, "tune", 0], *whole] * len(SIZES),
        "choosy": [*less, [3, "tune", 0], *whole],
        "late": [*less, [3, "tune", 2], [3, "tune", 0], [5, "tune", 0]],
    }
    for name, expected in runs.items():
        assert found[name]["runs"] == expected, name
        assert name == "choosy" or found[name]["rows"] == found["five"]["rows"], name
    assert found["choosy"]["left_out"] == [0, 0]
    assert sorted(found["late"]["measured"]) == found["late"]["rows"]


def test_a_build_that_goes_on_is_not_misled_by_the_rows_that_are_there(
    found: dict[str, Any],
) -> None:
    """All rows of the first bucket are there; that fewer layers ask for fewer is seen anyway."""
    assert found["deep"]["runs"] == [
        *([3, "tune", 0], [5, "strict", 0]),
        *([3, "tune", 1], [5, "strict", 0], [5, "tune", 1], [5, "strict", 0]),
    ]


def test_a_row_that_only_fewer_layers_ask_for_does_not_stay(found: dict[str, Any]) -> None:
    """What follows a product counts the layers: the row for three goes, that for five is tuned.

    Fewer layers do not stand for all then, and the next bucket is compiled whole as well.
    """
    counted = found["counted"]
    runs = [[3, "tune", 2], [5, "strict", 0], [5, "tune", 1], [5, "strict", 0]]
    assert counted["runs"] == runs * len(SIZES)
    followed = [GEMM.ingredients(key)["epilogue"].count("sigmoid") for key in counted["rows"]]
    assert sorted(followed) == [0, 0, LAYERS, LAYERS]
    assert sorted(counted["measured"]) == counted["rows"]


class _Scanned(dict[str, Row]):
    """Rows that count how often all of them are read."""

    scans = 0

    def __iter__(self) -> Iterator[str]:
        self.scans += 1
        return super().__iter__()


def test_equal_misses_look_for_the_nearest_row_once() -> None:
    """Layers that miss the same key read the rows once, and are told the same nearest row each."""
    rows = _Scanned({make_key(m): make_row() for m in (16, 560)})
    events: list[Event] = []
    lookup = Lookup(rows, OnMiss.FALLBACK, Emitter([events.append]))
    for _ in range(LAYERS):
        lookup.emit(Missed(make_key(500), MissReason.NOT_IN_TABLE, "the library"))
    said: list[Mapping[str, Any]] = [event.fields for event in events]
    assert rows.scans == 1
    assert [one["nearest"] for one in said] == [make_key(560)] * LAYERS
