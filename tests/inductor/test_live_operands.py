"""The operands of a selection that is measured in the build's own process, on a CPU."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from warmup.inductor.gemm.question import _LiveOperands


def test_an_expanded_operand_is_filled_once() -> None:
    """A bias that repeats along the rows has random values, the same in each row."""
    bias = torch.zeros(6).expand(4, 6)
    args = SimpleNamespace(extern=SimpleNamespace(input_tensors=[bias]))
    _LiveOperands(args, frozenset(), seed=0)
    assert bias.stride() == (0, 1)
    assert bias[0].unique().numel() == 6
    assert torch.equal(bias, bias[:1].expand(4, 6))
