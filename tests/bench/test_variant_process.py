"""Copies of weights and inputs, for calls that are to find them in no cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from warmup.bench.variant_process import Copies, copy_operands
from warmup.models.loading import Inputs

BYTES = 416 + 80  # of the layer below and its input
ROOM = 2**20


class Padded(nn.Module):
    """A linear layer whose weight has a gap after each row, as padding leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 12)[:, :10])
        self.register_buffer("scale", torch.randn(8))


@pytest.fixture
def module() -> nn.Module:
    return Padded()


@pytest.fixture
def given() -> Inputs:
    """What it is called with: one tensor twice, and a number."""
    x = torch.randn(2, 10, requires_grad=True)
    return Inputs((x, [x]), {"scale": 2.0})


@pytest.fixture
def copies(module: nn.Module, given: Inputs) -> Copies:
    """As many copies as there is room for."""
    return copy_operands(module, [given], ROOM)


def test_copies_take_the_room_that_they_are_given(module: nn.Module) -> None:
    """Beside the weights and inputs of all buckets themselves."""
    inputs = [Inputs((torch.randn(2, 10),), {}), Inputs((torch.randn(4, 10),), {})]
    room = 3 * (BYTES + 160)
    assert len(copy_operands(module, inputs, room)) == 4
    assert len(copy_operands(module, inputs, room - 1)) == 3


def test_there_are_at_most_64(copies: Copies) -> None:
    assert len(copies) == 64


def test_without_room_there_are_none(module: nn.Module, given: Inputs) -> None:
    """As on a CPU, whose kernels may hold weights that were packed when they were compiled."""
    assert len(copy_operands(module, [given], 0)) == 1


def test_each_copy_is_memory_of_its_own_laid_out_alike(copies: Copies) -> None:
    own, other = copies.contents[0], copies.contents[5]
    for first, second in zip(own, other, strict=True):
        assert (first.size(), first.stride()) == (second.size(), second.stride())
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(first, second)


def test_the_model_has_the_copy_that_was_taken(module: nn.Module, copies: Copies) -> None:
    """And numbers go round."""
    copies.take(0, 64 + 3)
    assert module.weight.data_ptr() == copies.contents[3][0].data_ptr()


def test_a_call_is_given_inputs_of_its_own(copies: Copies, given: Inputs) -> None:
    """Equal ones in other memory; a tensor that is given twice is so again; the rest is shared."""
    made = copies.take(0, 5)
    x, (again,) = made.args
    assert torch.equal(x, given.args[0])
    assert x.data_ptr() != given.args[0].data_ptr()
    assert x.requires_grad
    assert again is x
    assert made.kwargs == given.kwargs


def test_the_first_inputs_are_the_callers(copies: Copies, given: Inputs) -> None:
    assert copies.take(0, 64) is given


MOVING = """
import json, torch
from torch import nn
from warmup.bench.variant_process import copy_operands
from warmup.models.loading import Inputs
torch.manual_seed(0)
module, x = nn.Linear(10, 8), torch.randn(4, 10)
copies = copy_operands(module, [Inputs((x,), {})], 2**20)
compiled = torch.compile(module, dynamic=False)
with torch.no_grad():
    first = compiled(*copies.take(0, 0).args)
    for content in copies.contents[1]:
        content.mul_(2.0)
    with torch.compiler.set_stance("fail_on_recompile"):
        moved = torch.allclose(compiled(*copies.take(0, 1).args), first * 2)
        back = torch.equal(compiled(*copies.take(0, 0).args), first)
print(json.dumps([moved, back]))
"""


def test_compiled_code_follows_without_a_recompile(
    run_once: Callable[..., tuple[Path, str]],
) -> None:
    """It reads the weights where they are: other values there give another output."""
    assert json.loads(run_once("copies", "-c", MOVING)[1]) == [True, True]
