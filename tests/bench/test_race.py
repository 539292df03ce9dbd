"""How far from eager the variants of a comparison may be."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmup.bench.compare.race import CompareObserver, Race
from warmup.bench.compare.variant_process import VariantProcess

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.02


def judged(**errors: float) -> dict[str, tuple[float, float]]:
    """Return the error and the limit of each variant, by name, in one bucket."""
    race = Race(Path(), Path(), {}, 1.0, CompareObserver(), contextlib.ExitStack())
    entrants: list[Any] = [
        SimpleNamespace(failure=None, variant=SimpleNamespace(name=name), errors=[(error, LIMIT)])
        for name, error in errors.items()
    ]
    race.entrants = entrants
    race.allow_rounding()
    return {entrant.variant.name: entrant.errors[0] for entrant in entrants}


def test_every_variant_may_be_as_far_from_eager_as_default_mode() -> None:
    """Default mode at 2.5e-2 allows 3.75e-2 for all, itself too."""
    found = judged(eager=0.0, default=0.025, table=0.0235)
    assert [limit for _, limit in found.values()] == [pytest.approx(0.0375)] * 3


def test_the_tolerance_is_the_least_limit() -> None:
    """Default mode close to eager takes nothing away."""
    found = judged(eager=0.0, default=0.001, table=0.01)
    assert {limit for _, limit in found.values()} == {LIMIT}


def test_a_wrong_default_mode_excuses_nobody() -> None:
    """Beyond ten tolerances it is no rounding: the limits stay."""
    found = judged(eager=0.0, default=0.21, table=0.21)
    assert {limit for _, limit in found.values()} == {LIMIT}


def test_a_variant_is_timed_again_after_its_copies_are_freed() -> None:
    """One start serves several races, each with one way of launching: batches are made anew."""
    process = VariantProcess()
    case = {"model": f"{ROOT / 'examples/mlp.py'}:MLP", "how": "eager", "table": None, "inputs": ()}
    case |= {"device": "cpu", "dtype": None, "seed": 0, "spawned": 0.0}
    process.start(**case, buckets=[[("seqlen", 4)], [("seqlen", 8)]])
    for _ in range(2):
        process.release()
        process.prepare("eager", "warm", 0)
        assert process.time(1)["device_us"] > 0
        assert len(process._batches) == 2
