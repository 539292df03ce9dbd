"""The guards that this torch puts on the rows of Linear(3420 -> 1280) in bf16, on a stated H200.

Up to torch 2.11 pad_mm compares symbolic sizes (`is_mm_compute_bound`), from 2.12 on their hints:
the expected guards of each version are stated here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/cuda_guards.py")
COMPARES_SYMBOLS = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 11)
PAD_MM = "torch/_inductor/fx_passes/pad_mm.py"

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def spans(
    run_program: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """The ranges for 560, 1024 and 2048 rows, without the backward's GEMM and with it."""

    def run(*, grad: bool) -> list[dict[str, Any]]:
        asked = json.dumps({"sizes": [560, 1024, 2048], "grad": grad})
        found = run_program(tmp_path_factory.mktemp("caches"), PROGRAM, asked)
        assert found["uncovered"] is None
        spans: list[dict[str, Any]] = found["spans"]
        return spans

    return {"inference": run(grad=False), "training": run(grad=True)}


def test_training_is_compiled_anew_where_the_rows_pass_the_hidden_size(
    spans: dict[str, list[dict[str, Any]]],
) -> None:
    """Up to torch 2.11 a range ends at 1280 and the next at 3419; later there is one range."""
    found = [(span["high"], span["tuned_at"], span["sizes"]) for span in spans["training"]]
    if COMPARES_SYMBOLS:
        assert found == [(1280, 560, [560, 1024]), (3419, 2048, [2048])]
    else:
        assert found == [(None, 560, [560, 1024, 2048])]


def test_the_line_in_pad_mm_that_compared_is_named(spans: dict[str, list[dict[str, Any]]]) -> None:
    """Up to torch 2.11 both sides of 1280/1281 name is_mm_compute_bound as a heuristic."""
    ends = [cause for span in spans["training"] for cause in (span["below"], span["above"])]
    told = [cause for cause in ends if cause and PAD_MM in cause[2]]
    if COMPARES_SYMBOLS:
        (first, second) = spans["training"]
        assert first["above"][:2] == ["heuristic", "rows <= 1280"]
        assert second["below"][:2] == ["heuristic", "rows > 1280"]
        assert second["above"][:2] == ["heuristic", "rows < 3420"]
        for cause in (first["above"], second["below"], second["above"]):
            assert cause[2].startswith(PAD_MM)
            assert cause[2].endswith("in is_mm_compute_bound")
    else:
        assert told == []


def test_inference_is_compiled_once(spans: dict[str, list[dict[str, Any]]]) -> None:
    """Without the backward all three sizes use the artifact for 560, in every version."""
    (span,) = spans["inference"]
    assert (span["tuned_at"], span["sizes"]) == (560, [560, 1024, 2048])
    assert span["high"] == (3419 if COMPARES_SYMBOLS else None)
