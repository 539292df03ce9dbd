"""The guards that this torch puts on the rows of Linear(3420 -> 1280) in bf16, on a stated H200.

Up to torch 2.11 pad_mm compares symbolic sizes (`is_mm_compute_bound`), from 2.12 on their hints:
the expected guards of each version are stated here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from warmup.inductor.guards import Artifact, Guard

PROGRAM = "cuda_guards.py"
COMPARES_SYMBOLS = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 11)
PAD_MM = "torch/_inductor/fx_passes/pad_mm.py"
SIZES = [560, 1024, 2048]
Ask = Callable[..., list[dict[str, Any]]]


def test_training_is_compiled_anew_where_the_rows_pass_the_hidden_size(ask: Ask) -> None:
    """Up to torch 2.11 a range ends at 1280 and the next at 3419; later there is one range.

    Up to then both sides of 1280/1281 name the line of is_mm_compute_bound, as a heuristic.
    """
    spans = ask(sizes=SIZES, grad=True)
    found = [(span["high"], span["tuned_at"], span["sizes"]) for span in spans]
    ends = [cause for span in spans for cause in (span["below"], span["above"])]
    told = [cause for cause in ends if cause and cause[2].startswith(PAD_MM)]
    told = told[-3:]  # torch 2.11 has a lower end too
    if not COMPARES_SYMBOLS:
        assert (found, told) == ([(None, 560, SIZES)], [])
        return
    assert found == [(1280, 560, [560, 1024]), (3419, 2048, [2048])]
    assert [cause[:2] for cause in told] == [
        ["heuristic", "rows <= 1280"],
        ["heuristic", "rows > 1280"],
        ["heuristic", "rows < 3420"],
    ]
    assert all(cause[2].endswith("in is_mm_compute_bound") for cause in told)


def test_inference_is_compiled_once(ask: Ask) -> None:
    """Without the backward all three sizes use the artifact for 560, in every version."""
    (span,) = ask(sizes=SIZES, grad=False)
    assert (span["tuned_at"], span["sizes"]) == (560, SIZES)
    assert span["high"] == (3419 if COMPARES_SYMBOLS else None)


def make(holds: Callable[[int], bool], *, is_linear: bool = True) -> Guard:
    return Guard("spelled", holds, is_linear, None)


def test_guards_end_exactly() -> None:
    """A guard that is not linear is evaluated size by size, up to the ceiling.

    One on multiples of 8 holds at a single size, and again at others.
    """
    linear: list[tuple[Callable[[int], bool], tuple[int, int | None]]] = [
        (lambda size: size <= 1280, (0, 1280)),
        (lambda size: size > 1280, (1281, None)),
        (lambda size: size == 2048, (2048, 2048)),
        (lambda size: 1024 * size <= 2**31 - 1, (0, 2097151)),
        (lambda _: True, (0, None)),
    ]
    for holds, interval in linear:
        assert make(holds).interval(2048 if holds(2048) else 560, 4096) == interval, interval
    assert make(lambda size: size % 8 == 0, is_linear=False).interval(16, 64) is None
    guard = make(lambda size: 10 < size * size < 1000, is_linear=False)
    assert (guard.interval(16, 64), guard.interval(16, 31)) == ((4, 31), (4, None))


def test_an_artifact_serves_where_every_guard_holds() -> None:
    artifact = Artifact(0, 16, (make(lambda size: size > 2), make(lambda size: size < 20)))
    assert [size for size in (2, 3, 19, 20) if artifact.serves(size)] == [3, 19]
