"""The form of a model: its tensors and modules by name, without values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from warmup.models.model_form import form_of


class Net(nn.Module):
    """A model."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(2, 3)
        self.register_buffer("mask", torch.ones(2, 2))


def _values(net: Net) -> None:
    net.a.weight.data.fill_(7.0)


def _training(net: Net) -> None:
    net.train()


@pytest.mark.parametrize("change", [_values, _training])
def test_values_are_no_part_of_the_form(change: Callable[[Net], None]) -> None:
    """Other weights of the same shapes are served by the same artifact."""
    net = Net()
    change(net)
    assert form_of(net) == form_of(Net())


def test_a_tensor_has_dtype_shape_strides_and_device() -> None:
    """Parameters and buffers alike."""
    tensors = form_of(Net().to(torch.bfloat16)).tensors
    assert tensors["a.weight"] == "bf16[3,2] strides 2,1 on cpu"
    assert tensors["mask"] == "bf16[2,2] strides 2,1 on cpu"


def test_a_shared_tensor_is_named_by_its_first_name() -> None:
    """An artifact reads tied weights once."""
    net = Net()
    net.b.weight = net.a.weight
    assert form_of(net).tensors["b.weight"] == "the tensor of a.weight"


def test_hooks_are_part_of_the_form() -> None:
    """An artifact has traced them."""
    net = Net()
    net.a.register_forward_hook(lambda _module, _args, output: output)
    assert form_of(net).modules["a"] == "torch.nn.modules.linear.Linear with 1 hooks"
