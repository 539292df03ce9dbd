"""What a call of a model writes is seen, and put back."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmup.models.outputs import CallState, noted_tensors, written

PROGRAM = Path(__file__).resolve().parents[1] / "programs/models/written.py"


@pytest.fixture
def model() -> Any:
    spec = importlib.util.spec_from_file_location("written", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program.Written().eval()


def test_a_model_that_writes_nothing_has_no_state() -> None:
    """Its outputs are not copied, and nothing is put back."""
    model, x, state = nn.Linear(4, 4), torch.randn(2, 4), CallState()
    noted = noted_tensors(model, [((x,), {})])
    with torch.no_grad():
        output = model(x)
    assert state.keep_written(noted) == ()
    assert (state.is_empty, state.detached(output) is output) == (True, True)


def test_buffers_and_inputs_that_a_call_writes_are_named(model: Any) -> None:
    """Written in place, or another tensor in a buffer's place."""
    x = torch.randn(2, 64)
    noted = noted_tensors(model, [((x,), {})])
    with torch.no_grad():
        model(x)
    assert written(noted) == ("buffer position", "buffer scale", "input 0")


@torch.no_grad()
def test_each_call_begins_with_what_was_kept(model: Any) -> None:
    """Two calls, with the state put back between them, have the same output."""
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
