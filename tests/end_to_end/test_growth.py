"""What grows with the layers of a model, and what does not: counts of real builds and a start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from warmup.core.events import Emitter, Event
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Row
from warmup.table.lookup import Lookup, OnMiss

pytestmark = pytest.mark.long

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
    """A build of five equal layers measures the candidates that one of two layers does."""
    measured = found["two"]["measured"]
    assert found["five"]["measured"] == measured
    assert len(measured) == len(SIZES)
    assert min(measured.values()) > 1


def test_more_layers_are_served_from_the_table_of_fewer(found: dict[str, Any]) -> None:
    """Five layers, served from the table of two, ask once for each layer and bucket, and hit."""
    assert found["served"] == {"hits": LAYERS * len(SIZES), "misses": 0}


def test_every_layer_is_compiled_once_to_tune_and_once_from_rows(found: dict[str, Any]) -> None:
    """Each bucket is tuned with all layers, and compiled once more from rows alone."""
    assert found["two"]["runs"] == [[2, "tune", 1], [2, "strict", 0]] * len(SIZES)
    assert found["five"]["runs"] == [[5, "tune", 1], [5, "strict", 0]] * len(SIZES)


class _Scanned(dict[str, Row]):
    """Rows that count how often all of them are read."""

    scans = 0

    def __iter__(self) -> Iterator[str]:
        self.scans += 1
        return super().__iter__()


def test_equal_misses_look_for_the_nearest_row_once(
    make_key: Callable[..., str], make_row: Callable[..., Row]
) -> None:
    """Layers that miss the same key read the rows once, and are told the same nearest row each."""
    rows = _Scanned({make_key(m): make_row() for m in (16, 560)})
    events: list[Event] = []
    lookup = Lookup(rows, OnMiss.FALLBACK, Emitter([events.append]))
    for _ in range(LAYERS):
        lookup.miss(make_key(500), MissReason.NOT_IN_TABLE, "the library")
    said: list[Mapping[str, Any]] = [event.fields for event in events]
    assert rows.scans == 1
    assert [one["nearest"] for one in said] == [make_key(560)] * LAYERS
