"""Copies of the weights of a model, for calls that are to find them in no cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from warmup.comparing.copies import Copies, copy_weights

GPU = torch.device("cuda", 0)
FREE = 2**20


class Padded(nn.Module):
    """A linear layer whose weight has a gap after each row, as padding leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 12)[:, :10])
        self.register_buffer("scale", torch.randn(8))


@pytest.fixture
def module() -> nn.Module:
    """The layer."""
    return Padded()


@pytest.fixture
def copies(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Copies:
    """As many copies of its weights as a stated GPU has room for."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (FREE, FREE))
    return copy_weights(module, GPU)


def test_copies_take_a_share_of_the_free_memory(
    module: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eighth of it, beside the weights themselves: 416 bytes here."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (8 * 416 * 3, FREE))
    assert len(copy_weights(module, GPU)) == 4


def test_there_are_at_most_64(copies: Copies) -> None:
    """However small the weights are."""
    assert len(copies) == 64


def test_a_cpu_has_none_but_its_own(module: nn.Module) -> None:
    """Its kernels may hold weights that were packed when they were compiled."""
    assert len(copy_weights(module, torch.device("cpu"))) == 1


def test_each_copy_is_memory_of_its_own_laid_out_alike(copies: Copies) -> None:
    """Same sizes, strides and values; no two share memory."""
    own, other = copies.contents[0], copies.contents[5]
    for first, second in zip(own, other, strict=True):
        assert (first.size(), first.stride()) == (second.size(), second.stride())
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(first, second)


def test_the_model_has_the_copy_that_was_taken(module: nn.Module, copies: Copies) -> None:
    """And numbers go round."""
    copies.take(64 + 3)
    assert module.weight.data_ptr() == copies.contents[3][0].data_ptr()


MOVING = """
import json, torch
from torch import nn
from warmup.comparing.copies import copy_weights
torch.cuda.mem_get_info = lambda _: (2**20, 2**20)
torch.manual_seed(0)
module, x = nn.Linear(10, 8), torch.randn(4, 10)
copies = copy_weights(module, torch.device("cuda", 0))
compiled = torch.compile(module, dynamic=False)
with torch.no_grad():
    first = compiled(x)
    for content in copies.contents[1]:
        content.mul_(2.0)
    with torch.compiler.set_stance("fail_on_recompile"):
        copies.take(1)
        moved = torch.allclose(compiled(x), first * 2)
        copies.take(0)
        back = torch.equal(compiled(x), first)
print(json.dumps([moved, back]))
"""


def test_compiled_code_follows_without_a_recompile(
    run_once: Callable[..., tuple[Path, str]],
) -> None:
    """It reads the weights where they are: other values there give another output."""
    assert json.loads(run_once("copies", "-c", MOVING)[1]) == [True, True]
