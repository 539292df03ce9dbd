"""`demand_of`: the operations of a call, and the dtypes that they are in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from warmup.bench.compare.comparison import Demand
from warmup.bench.compare.demand import demand_of
from warmup.core.dtypes import narrowest

ROWS, INPUTS, OUTPUTS = 32, 64, 128


class _Integers(nn.Module):
    """A product of int8, and a linear in bf16 after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(OUTPUTS, INPUTS, dtype=torch.int8))
        self.down = nn.Linear(OUTPUTS, INPUTS, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch._int_mm(x, self.weight.t())
        return self.down(product.to(torch.bfloat16))


@pytest.fixture(scope="module")
def demand() -> Demand:
    """The demand of a call with int8 and bf16."""
    found, remarks = demand_of(_Integers(), [torch.ones(ROWS, INPUTS, dtype=torch.int8)], {})
    assert remarks == ()
    return found


def test_products_of_integers_are_counted(demand: Demand) -> None:
    """Torch 2.11 counts none of them."""
    assert demand.flops == 2 * (2 * ROWS * INPUTS * OUTPUTS)


def test_the_dtypes_of_what_is_counted_are_named(demand: Demand) -> None:
    """The casts between them are not counted."""
    assert demand.dtypes == ("bf16", "i8")


@pytest.mark.parametrize(
    ("names", "default", "expected"),
    [
        (("bf16", "i8"), "bf16", "i8"),
        (("bf16", "f8_e4m3fn"), "f32", "f8_e4m3fn"),
        (("f16",), "bf16", "bf16"),
        ((), "f32", "f32"),
    ],
)
def test_the_narrowest_dtype_decides_the_peak(
    names: tuple[str, ...], default: str, expected: str
) -> None:
    """The default stays where none is narrower, as for documents that name none."""
    assert narrowest(names, default) == expected
