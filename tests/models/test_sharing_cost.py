"""`CalledPair` and `SharingCost`: two layers as one module, and the cost in a model of many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warmup.models.layer_pair import CalledLayer, pair_of
from warmup.models.sharing_cost import PairTime, SharingCost, ratio_of


class Step(nn.Module):
    """Returns nested containers of what it is called with."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor, *, more: dict[str, Any]) -> tuple[Any, ...]:
        """Return the rows, scaled and shifted, and the shift in a list."""
        return x * self.factor + more["shift"][0], [more["shift"][0], 3]


def called(factor: float, x: torch.Tensor, shift: Any, *, word: str = "a") -> CalledLayer:
    """Return a layer that was called."""
    layer, kwargs = Step(factor), {"more": {"shift": [shift], "word": word}}
    artifact: Any = None
    return CalledLayer(f"layers.{factor}", layer, artifact, 0, (x,), kwargs, layer(x, **kwargs))


def test_a_pair_computes_what_the_second_layer_returned() -> None:
    """Tensors of its call come from the first call or its result, constants from its own call."""
    first = called(2.0, torch.rand(3), torch.rand(3))
    second = called(3.0, first.result[0], first.result[1][0])
    pair = pair_of(first, second, 4, {})
    assert pair is not None
    result = pair.module(*first.args, **first.kwargs)
    assert torch.equal(result[0], second.result[0])
    assert result[1][1] == 3


def test_layers_are_no_pair_where_the_model_computes_in_between() -> None:
    """A tensor that the first layer was neither called with nor returned may come from anywhere."""
    first = called(2.0, torch.rand(3), torch.rand(3))
    assert pair_of(first, called(3.0, first.result[0] + 1, first.result[1][0]), 4, {}) is None
    assert pair_of(first, called(3.0, first.args[0], first.result[1][0]), 4, {}) is None


@pytest.mark.parametrize(
    ("shared", "whole", "layers", "ratio"),
    [
        ((20.0, 0.0), (20.0, 0.0), 32, 1.0),
        ((20.0, 0.0), (19.0, 0.0), 2, 20 / 19),  # a model of two layers is the pair
        ((20.0, 0.0), (19.0, 0.0), 32, 10 / (9.5 - 30 / 64)),  # a border for each layer, almost
        ((20.0, 60.0), (20.0, 40.0), 32, 30 / (20 - 20 * 30 / 64)),  # the host limits both
        ((20.0, 15.0), (20.0, 5.0), 32, 1.0),  # the device limits both
        ((20.0, 30.0), (20.0, 5.0), 32, 1.5),  # the host limits shared layers alone
        ((20.0, 0.0), (2.0, 0.0), 32, 20.0),  # noise does not make layers free
    ],
)
def test_the_cost_in_a_model_follows_from_that_of_two_layers(
    shared: tuple[float, float], whole: tuple[float, float], layers: int, ratio: float
) -> None:
    """What takes longer, the host or the device, is the time of a call."""
    assert ratio_of(PairTime(*shared), PairTime(*whole), layers) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("ratios", "is_slower"),
    [
        ((1.02,) * 9, True),
        ((1.009,) * 9, False),  # the goal of a steady state
        ((0.98, 0.99, 1.0, 1.05, 1.05, 1.05, 1.05, 1.05, 1.05), False),  # noise
        ((0.9,) * 9, False),
    ],
)
def test_slower_is_beyond_noise_and_one_percent(ratios: tuple[float, ...], is_slower: bool) -> None:
    """The lower end of the 95 % interval of the median decides."""
    assert SharingCost("a and b", ratios).is_slower is is_slower
