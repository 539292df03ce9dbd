"""Errors of outputs over a reference: what counts, what is infinite, and which tensor is worst."""

from __future__ import annotations

import math

import pytest
import torch

from warmup.models import outputs
from warmup.models.outputs import output_errors, worst_error

INF, NAN = float("inf"), float("nan")
EXACT = torch.tensor([3.0, 4.0])


def test_the_error_is_relative_over_what_is_finite() -> None:
    """Masked positions that are infinite or NaN alike are equal; where only one is, it is wrong."""
    for expected, actual, error in (
        (EXACT, EXACT + torch.tensor([0.3, 0.4]), 0.1),
        (EXACT, (EXACT * 2).bfloat16(), 1.0),
        (torch.zeros(2), EXACT, 5.0),
        (torch.tensor([3.0, -INF, 4.0]), torch.tensor([3.3, -INF, 4.4]), 0.1),
        (torch.tensor([3.0, NAN, 4.0]), torch.tensor([3.3, NAN, 4.4]), 0.1),
        (EXACT, torch.tensor([3.0, NAN]), INF),
        (torch.tensor([3.0, INF]), EXACT, INF),
        (torch.tensor([3.0, INF]), torch.tensor([3.0, -INF]), INF),
        (EXACT, EXACT[:1], INF),
        (torch.tensor([3 + 4j]), torch.tensor([3.3 + 4.4j]), 0.1),
        (torch.tensor([True, False]), torch.tensor([True, True]), 1.0),
        (torch.empty(0), torch.empty(0), 0.0),
    ):
        assert output_errors([expected], [actual]) == [pytest.approx(error, rel=1e-6)]


def test_large_outputs_are_compared_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks of a tensor give the error of the tensor, also where it is not contiguous."""
    expected = torch.randn(7, 9).t()
    whole = output_errors(expected, expected + 0.1)
    monkeypatch.setattr(outputs, "_CHUNK", 5)
    assert output_errors(expected, expected + 0.1) == pytest.approx(whole)


def test_the_worst_tensor_is_furthest_from_its_own_limit() -> None:
    """A small error of a dtype with a small limit counts more than a large one with a large."""
    expected = {"a": EXACT.bfloat16(), "b": (EXACT.double(), "text")}
    actual = {"a": EXACT.bfloat16() * 1.5, "b": (EXACT.double() * 1.25, "text")}
    limits = {"bf16": 1.0, "f64": 0.01}
    assert worst_error(expected, actual, limits) == (pytest.approx(0.25), 0.01)


def test_outputs_without_tensors_are_right() -> None:
    """A model that returns numbers alone has nothing to compare."""
    error, limit = worst_error(3, 4, {})
    assert error < limit < math.inf
