"""What a call of a model writes is seen, and put back."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from torch import nn

from warmup.models.outputs import CallState, noted_tensors

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
    assert (state.is_empty, state.detached(output) is output) == (True, True)
