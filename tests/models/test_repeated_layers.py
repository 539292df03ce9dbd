"""`shortened`: which repeated layers are left out, which stay, and that all of them are back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from warmup.keys.weight import Padding
from warmup.models.padded_modules import PaddedLinear, pad, restore
from warmup.models.repeated_layers import shortened
from warmup.models.weight_groups import find_groups

SIZE = 8


class Layer(nn.Module):
    """A Linear with attributes as layers have them, of which one may be the layer's number."""

    def __init__(self, number: int = 0, kind: object = "plain", size: int = SIZE) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, size)
        self.number = number
        self.kinds = {"kind": [kind]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activated output of the Linear."""
        return self.linear(x).relu()


class Stack(nn.Module):
    """Layers on top of each other."""

    def __init__(self, *layers: nn.Module | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)  # type: ignore[arg-type]  # None is let in

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what comes of all layers."""
        for layer in self.layers:
            x = layer(x)
        return x


def kept(model: nn.Module, layers: nn.Module, *, has_kernels: bool = False) -> list[int]:
    """Return the indices of the *layers* that stay while *model* is shortened."""
    before = [*layers.children()]
    with shortened(model, has_kernels=has_kernels) as left_out:
        indices = [before.index(layer) for layer in layers.children()]
    assert left_out == len(before) - len(indices)
    return indices


def test_the_first_two_and_the_last_of_equal_neighbours_stay() -> None:
    """A model of five layers computes what its layers 0, 1 and 4 do, found by their new numbers."""
    layers = [Layer() for _ in range(5)]
    model, x = Stack(*layers), torch.randn(2, SIZE)
    expected = layers[4](layers[1](layers[0](x)))
    with shortened(model, has_kernels=False) as left_out:
        assert torch.equal(model(x), expected)
        assert model.layers[2] is layers[4]
    assert left_out == 2


def test_a_model_is_as_it_was_afterwards() -> None:
    """Its modules and their names are, even after an error inside."""
    model = Stack(*(Layer() for _ in range(5)), nn.Sequential(*(Layer() for _ in range(5))))
    before = [*model.named_modules()]
    with pytest.raises(IndexError), shortened(model, has_kernels=False):
        model.layers[9]
    assert [*model.named_modules()] == before


def test_with_kernels_between_them_five_or_six_stay() -> None:
    """The number of layers left out is even."""
    for count, stay in (
        (5, [0, 1, 2, 3, 4]),
        (6, [0, 1, 2, 3, 4, 5]),
        (7, [0, 1, 2, 3, 6]),
        (32, [0, 1, 2, 3, 4, 31]),
    ):
        model = Stack(*(Layer() for _ in range(count)))
        assert kept(model, model.layers, has_kernels=True) == stay, count


def test_of_each_run_of_equal_layers_three_stay() -> None:
    """Of a run of three layers none is left out."""
    model = Stack(*(Layer() for _ in range(3)))
    assert kept(model, model.layers) == [0, 1, 2]
    # Each run keeps three layers; a layer of another kind in between stays.
    layers = [*(Layer() for _ in range(4)), Layer(kind="other"), *(Layer() for _ in range(5))]
    model = Stack(*layers)
    assert kept(model, model.layers) == [0, 1, 3, 4, 5, 6, 9]


def test_lists_are_shortened_at_any_depth() -> None:
    """The Sequential may be the model itself, and finds its modules by name."""
    model = nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(5)))
    with shortened(model, has_kernels=False):
        assert [name for name, _ in model.named_children()] == ["0", "1", "4"]
    # Lists in layers are shortened too.
    model = Stack(*(Stack(*(Layer() for _ in range(6))) for _ in range(4)))
    with shortened(model, has_kernels=False):
        assert [len(layer.layers) for layer in model.layers] == [3, 3, 3]  # type: ignore[union-attr, arg-type]


def test_layers_are_equal_but_for_their_index() -> None:
    """An attribute with each layer's index in its list makes no difference."""
    model = Stack(*(Layer(number) for number in range(5)))
    assert kept(model, model.layers) == [0, 1, 4]
    # A number that grows from layer to layer, and is not the index, may decide something.
    model = Stack(*(Layer(number + 1) for number in range(5)))
    assert kept(model, model.layers) == [0, 1, 2, 3, 4]


def test_layers_that_refer_to_themselves_are_compared() -> None:
    layers = [Layer() for _ in range(5)]
    for layer in layers:
        layer.kinds["kind"].append([layer])
    model = Stack(*layers)
    assert kept(model, model.layers) == [0, 1, 4]


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
        layers = [Layer() for _ in range(7)]
        change(layers[3])
        model = Stack(*layers)
        assert kept(model, model.layers) == [*range(7)], name


def test_hooked_layers_and_lists_stay() -> None:
    layers = [Layer() for _ in range(5)]
    for layer in layers:
        layer.register_forward_pre_hook(print)
    model = Stack(*layers)
    assert kept(model, model.layers) == [*range(5)]
    # A hook on a Sequential must see the output of all its layers.
    model = nn.Sequential(*(Layer() for _ in range(5)))
    model.register_forward_hook(lambda *_: None)
    assert kept(model, model) == [*range(5)]


def test_shared_layers_stay() -> None:
    """A layer that a list holds several times, or that has a name outside of the list."""
    same = Layer()
    again = Stack(*[same] * 5)
    named = Stack(*(Layer() for _ in range(5)))
    named.last = named.layers[-1]
    with (
        shortened(again, has_kernels=False) as of_again,
        shortened(named, has_kernels=False) as of_named,
    ):
        assert [len(again.layers), len(named.layers)] == [5, 4]
    assert (of_again, of_named) == (0, 1)


def test_lists_that_may_mean_more_stay() -> None:
    """The two modules that hold the list may use its layers differently."""
    model = Stack(*(Layer() for _ in range(5)))
    model.same = model.layers
    assert kept(model, model.layers) == [*range(5)]
    # A list may hold None, which is equal to no neighbour.
    model = Stack(*(None for _ in range(5)))
    with shortened(model, has_kernels=False) as left_out:
        assert len(model.layers) == 5
    assert left_out == 0


def test_padded_layers_are_equal_as_well() -> None:
    """Layers whose weights are padded are left out, and restored with the others afterwards."""
    model = Stack(*(Layer(size=SIZE - 1) for _ in range(5))).eval()
    groups = find_groups(model).groups
    pad(model, {group: Padding(SIZE) for group in groups})
    with shortened(model, has_kernels=False) as left_out:
        assert {type(layer.linear) for layer in model.layers} == {PaddedLinear}  # type: ignore[union-attr]
    restore(model)
    assert left_out == 2
    assert {type(layer.linear) for layer in model.layers} == {nn.Linear}  # type: ignore[union-attr]
