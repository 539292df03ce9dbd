"""`shortened`: which repeated layers are left out, which stay, and that all of them are back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from warmup.models.repeated_layers import shortened

SIZE = 8


class Layer(nn.Module):
    """A Linear with attributes as layers have them, of which one may be the layer's number."""

    def __init__(self, number: int = 0, kind: object = "plain") -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.number = number
        self.kinds = {"kind": [kind]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Stack(nn.Module):
    """Layers on top of each other."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def kept(model: Stack, *, has_kernels: bool = False) -> list[int]:
    """Return the indices of the layers that stay while *model* is shortened."""
    before = [*model.layers]
    with shortened(model, has_kernels=has_kernels) as left_out:
        indices = [before.index(layer) for layer in model.layers]
    assert left_out == len(before) - len(indices)
    return indices


def stack(count: int) -> Stack:
    return Stack(*(Layer() for _ in range(count)))


def test_the_first_two_and_the_last_of_equal_neighbours_stay() -> None:
    """A model of five layers computes what its layers 0, 1 and 4 do, at their new numbers."""
    model, x = stack(5), torch.randn(2, SIZE)
    layers = [*model.layers]
    expected = layers[4](layers[1](layers[0](x)))
    with shortened(model, has_kernels=False) as left_out:
        assert torch.equal(model(x), expected)
        assert model.layers[2] is layers[4]
    assert left_out == 2
    assert kept(stack(3)) == [0, 1, 2]
    mixed = Stack(*stack(4).layers, Layer(kind="other"), *stack(5).layers)
    assert kept(mixed) == [0, 1, 3, 4, 5, 6, 9]


def test_with_kernels_between_them_five_or_six_stay() -> None:
    """The number of layers left out is even."""
    for count, stay in ((6, [0, 1, 2, 3, 4, 5]), (7, [0, 1, 2, 3, 6]), (32, [0, 1, 2, 3, 4, 31])):
        assert kept(stack(count), has_kernels=True) == stay, count


def test_a_model_is_as_it_was_afterwards() -> None:
    """After an error inside too; lists are shortened at any depth, and named as they look up."""
    model = Stack(*(Stack(*stack(5).layers) for _ in range(4)), nn.Sequential(*stack(5).layers))
    before = [*model.named_modules()]
    with shortened(model, has_kernels=False):
        assert [len([*layer.modules()]) for layer in model.layers[:3]] == [8, 8, 8]  # type: ignore[index]
        assert [name for name, _ in model.layers[3].named_children()] == ["0", "1", "4"]
    with pytest.raises(IndexError), shortened(model, has_kernels=False):
        model.layers[9]
    assert [*model.named_modules()] == before


def test_layers_are_equal_but_for_their_index() -> None:
    """A number that grows with the layers, and is not the index, may decide something."""
    assert kept(Stack(*(Layer(number) for number in range(5)))) == [0, 1, 4]
    assert kept(Stack(*(Layer(number + 1) for number in range(5)))) == [0, 1, 2, 3, 4]
    circular = stack(5)
    for layer in circular.layers:
        layer.kinds["kind"].append([layer])  # type: ignore[operator, union-attr, index]
    assert kept(circular) == [0, 1, 4]


CHANGES: dict[str, Callable[[Layer], object]] = {
    "attribute": lambda layer: layer.kinds["kind"].insert(0, "other"),
    "mode": lambda layer: layer.linear.train(mode=False),
    "dtype": lambda layer: layer.linear.to(torch.bfloat16),
    "strides": lambda layer: setattr(
        layer.linear, "weight", nn.Parameter(torch.randn(SIZE, SIZE).T)
    ),
    "buffer": lambda layer: layer.register_buffer("extra", torch.zeros(1)),
    "bias": lambda layer: setattr(layer, "linear", nn.Linear(SIZE, SIZE, bias=False)),
    "hook": lambda layer: layer.linear.register_forward_hook(lambda *_: None),
    "forward": lambda layer: setattr(layer.linear, "forward", torch.relu),
    "object": lambda layer: layer.kinds["kind"].insert(0, object()),
}


def test_a_layer_that_differs_stays() -> None:
    """So do its neighbours: runs of at most three layers are left on both sides."""
    for name, change in CHANGES.items():
        model = stack(7)
        change(model.layers[3])  # type: ignore[arg-type]
        assert kept(model) == [*range(7)], name


def test_what_may_mean_more_stays() -> None:
    hooked = nn.Sequential(*stack(5).layers)
    hooked.register_forward_hook(lambda *_: None)
    again, named, twice = Stack(*[Layer()] * 5), stack(5), stack(5)
    named.last, twice.same = named.layers[-1], twice.layers
    for model, left_out in ((hooked, 0), (again, 0), (named, 1), (twice, 0)):
        with shortened(model, has_kernels=False) as found:
            assert found == left_out
