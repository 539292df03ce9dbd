"""A table freezes no weights unless the program or its user does, and says which rows need it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, PROGRAMS, answer_of, warmup_in

pytestmark = pytest.mark.long
RunOnce = Callable[..., tuple[Path, str]]


@pytest.fixture(scope="module")
def served(
    built: tuple[Path, Any],
    bmm_tables: tuple[Path, Path],
    run_once: RunOnce,
    variables: dict[str, str],
) -> dict[str, Any]:
    program = str(PROGRAMS / "serve_unfrozen.py")
    _, said = run_once("unfrozen", program, str(built[0]), str(bmm_tables[1]), **variables)
    found: dict[str, Any] = answer_of(said)
    return found


def test_weights_that_change_in_place_are_followed(served: dict[str, Any]) -> None:
    """With a table whose rows were built frozen, also where one compile has torch's option."""
    for way in ("nobody", "option of the compile"):
        found = served[way]
        assert max(found["errors"]) < 1e-3, way
        assert found["reasons"] == {"needs_freezing": 2}, way
        (advised,) = found["advised"]
        assert "install(freezing=True), --freezing or WARMUP_FREEZING=1" in advised, way


def test_a_product_of_two_activations_has_its_row_in_both_forms(served: dict[str, Any]) -> None:
    (product,) = served["nobody"]["hits"]
    assert product.startswith("bmm ")
    for way in ("program", "user"):
        assert product in served[way]["hits"], way


def test_the_user_or_the_program_freezes(served: dict[str, Any]) -> None:
    """Both linears are hits then, with strict too; only what the user froze is watched."""
    for way in ("program", "user"):
        found = served[way]
        assert (len(found["hits"]), found["reasons"]) == (3, {}), way
        assert found["errors"][0] < 1e-3, way
    assert served["program"]["refused"] is None
    assert "weights were changed after forward (serve_unfrozen.py:" in served["user"]["refused"]


def test_strict_refuses_a_linear_whose_row_needs_freezing(served: dict[str, Any]) -> None:
    refused = served["strict"]["refused"]
    assert "(needs_freezing); nearest row `packed_linear m=16 n=1024 k=256 f32" in refused
    assert "differs in weight: row frozen, here not; if no weight changes" in refused


def test_a_build_without_freezing_asks_what_such_a_program_asks(tmp_path: Path) -> None:
    """Of a linear and an attention, the attention's products, by the keys of a frozen build."""
    words = ("build", "--device", "cpu", "--model", f"{MODELS / 'attending.py'}:Attending")
    words += ("--seqlens", "16", "--out", "t.json", "--dry-run", "--json")
    frozen, unfrozen = (
        set(json.loads(warmup_in(tmp_path, *words, way).stdout)["missing"])
        for way in ("--freezing", "--no-freezing")
    )
    assert {key.split()[0] for key in unfrozen} == {"bmm"}
    assert {key.split()[0] for key in frozen - unfrozen} == {"packed_linear"}
    assert unfrozen < frozen
