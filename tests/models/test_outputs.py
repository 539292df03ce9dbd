"""Errors of outputs over a reference: what counts, what is infinite, and which tensor is worst."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmup.core.errors import ModelError
from warmup.models import outputs
from warmup.models.outputs import CallState, noted_tensors, output_errors, worst_error

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


def jagged(*rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([*rows], layout=torch.jagged)


def quantized(tensor: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(tensor, 0.5, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore")  # torch says that most of these forms are in beta or go
def test_tensors_that_are_not_dense_are_compared_by_their_dense_form() -> None:
    wide, off = EXACT.expand(4, 2).contiguous(), torch.tensor([[3.0, 4.0], [3.0, 4.0], [0, 0.0]])
    makes = {
        "jagged": lambda x: jagged(x, x[:1]),
        "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
        "coo": torch.Tensor.to_sparse,
        "csr": torch.Tensor.to_sparse_csr,
        "csc": torch.Tensor.to_sparse_csc,
        "bsr": lambda x: x.to_sparse_bsr((2, 2)),
        "mkldnn": torch.Tensor.to_mkldnn,
        "quantized": quantized,
    }
    for name, make in makes.items():
        found = output_errors(
            [make(wide), make(wide), make(wide)], [make(wide), *[make(wide * 1.5)] * 2]
        )
        assert found == [0.0, pytest.approx(0.5), pytest.approx(0.5)], name
        assert output_errors([make(wide)], [make(off[:2])]) == [INF], name
        assert worst_error(make(wide), make(wide), {"f32": 0.5}) == (0.0, 0.5), name


def test_an_output_without_a_dense_form_is_refused() -> None:
    class Opaque(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, *_rest: Any) -> Any:
            if "get" in str(getattr(function, "__name__", "")):  # attributes, such as layout
                return super().__torch_function__(function, *_rest)
            raise NotImplementedError(f"no {function.__name__} of Opaque")

    with pytest.raises(ModelError, match="a tensor of Opaque, layout torch"):
        output_errors([torch.zeros(2).as_subclass(Opaque)], [torch.zeros(2)])


def test_large_outputs_are_compared_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
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
    # A model that returns numbers alone has nothing to compare.
    error, limit = worst_error(3, 4, {})
    assert error < limit < math.inf


PROGRAM = Path(__file__).resolve().parents[1] / "programs/models/written.py"


@torch.no_grad()
def test_each_call_begins_with_what_was_kept() -> None:
    model = runpy.run_path(str(PROGRAM))["Written"]().eval()
    x, state = torch.randn(2, 64), CallState()
    noted = noted_tensors(model, [((), {"x": x})])
    model(x=x)
    assert state.keep_written(noted) == ("buffer position", "buffer scale", "input x")
    first = state.detached(model(x=x))
    state.restore()
    second = state.detached(model(x=x))
    state.restore()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert first[1] == 2
    assert float(model.position) == 1


@torch.no_grad()
def test_outputs_of_a_model_that_writes_nothing_are_not_copied() -> None:
    model, x, state = nn.Linear(4, 4), torch.randn(2, 4), CallState()
    noted = noted_tensors(model, [((x,), {})])
    output = model(x)
    assert state.keep_written(noted) == ()
    assert state.detached(output) is output
