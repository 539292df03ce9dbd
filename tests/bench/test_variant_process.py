"""Copies of weights and inputs, for calls that are to find them in no cache."""

from __future__ import annotations

import torch
from torch import nn

from warmup.bench.variant_process import copy_operands
from warmup.models.loading import Inputs

BYTES = 416 + 80  # of the layer below and its input
ROOM = 2**20


class Padded(nn.Module):
    """A linear layer whose weight has a gap after each row, as padding leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 12)[:, :10])
        self.register_buffer("scale", torch.randn(8))


def test_copies_take_the_room_that_they_are_given() -> None:
    """Beside the weights and inputs of all buckets themselves; at most 64.

    Without room there are none, as on a CPU, whose kernels may hold weights that were packed.
    """
    inputs = [Inputs((torch.randn(2, 10),), {}), Inputs((torch.randn(4, 10),), {})]
    room = 3 * (BYTES + 160)
    for given, count in ((room, 4), (room - 1, 3), (ROOM, 64), (0, 1)):
        assert len(copy_operands(Padded(), inputs, given)) == count, given


def test_each_copy_is_memory_of_its_own_laid_out_alike() -> None:
    """A call is given equal inputs in other memory, a tensor given twice is so again.

    The model has the weights of the copy that was taken, and numbers go round.
    """
    module, x = Padded(), torch.randn(2, 10, requires_grad=True)
    given = Inputs((x, [x]), {"scale": 2.0})
    copies = copy_operands(module, [given], ROOM)
    for first, second in zip(copies.contents[0], copies.contents[5], strict=True):
        assert (first.size(), first.stride()) == (second.size(), second.stride())
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(first, second)
    made = copies.take(0, 5)
    own, (again,) = made.args
    assert torch.equal(own, x)
    assert own.data_ptr() != x.data_ptr()
    assert own.requires_grad
    assert again is own
    assert made.kwargs == given.kwargs
    copies.take(0, 64 + 3)
    assert module.weight.data_ptr() == copies.contents[3][0].data_ptr()
    assert copies.take(0, 64) is given


def test_compiled_code_follows_without_a_recompile() -> None:
    """It reads the weights where they are: other values there give another output."""
    module, x = nn.Linear(10, 8), torch.randn(4, 10)
    copies = copy_operands(module, [Inputs((x,), {})], ROOM)
    compiled = torch.compile(module, dynamic=False, backend="aot_eager")
    with torch.no_grad():
        first = compiled(*copies.take(0, 0).args)
        for content in copies.contents[1]:
            content.mul_(2.0)
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.allclose(compiled(*copies.take(0, 1).args), first * 2)
            assert torch.equal(compiled(*copies.take(0, 0).args), first)
