"""`LinearModule`: a module of one group; and how many rows of activations groups get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from warmup.keys.weight import Padding, padded_sizes
from warmup.models.weight_groups import Group, PaddedLinear, find_groups, pad
from warmup.tuning.weights import count_rows, make_linear_module

CPU = torch.device("cpu")


class Fork(nn.Module):
    """Two activations in, Linears that make one kind of features, two that take them, one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(n, 45, bias=n > 8) for n in (8, 16, 8))
        self.left, self.right = nn.Linear(45, 8), nn.Linear(45, 12, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the two Linears make of the features."""
        made = torch.relu(self.one(x)) * self.two(y) - self.three(x)
        return self.left(made), self.right(torch.tanh(made))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "head": lambda: nn.Linear(32, 101, bias=False),
    "patch": lambda: nn.Linear(30, 32),
    "sequence": lambda: nn.Sequential(nn.Linear(32, 45), nn.GELU("tanh"), nn.Linear(45, 32)),
    "plain": lambda: nn.Sequential(nn.Linear(32, 45), nn.Linear(45, 32)),
    "fork": Fork,
    "half": lambda: nn.Linear(30, 32).bfloat16(),
}


@pytest.fixture(params=MODELS)
def group(request: pytest.FixtureRequest) -> Group:
    (found,) = find_groups(MODELS[request.param]().eval()).groups
    return found


def test_the_module_has_the_structure_of_its_group(group: Group) -> None:
    linears = make_linear_module(group, 6, CPU)
    assert find_groups(linears.module).groups == (linears.group,)
    assert linears.group.structure == group.structure


def test_the_module_can_be_padded(group: Group) -> None:
    """Padded, its output is the same, with the number of rows that was asked for."""
    linears = make_linear_module(group, 6, CPU)
    structure = group.structure
    with torch.no_grad():
        before = linears.module(*linears.inputs)
        padding = Padding(padded_sizes(structure.features, structure.dtype)[-1])
        pad(linears.module, {linears.group: padding})
        after = linears.module(*linears.inputs)
    assert any(isinstance(module, PaddedLinear) for module in linears.module.modules())
    assert [tuple(each.shape) for each in after] == [
        (6, size) for size in structure.outputs or (structure.features,)
    ]
    torch.testing.assert_close(after, before)


def test_the_module_computes_what_its_group_does() -> None:
    model = Fork().eval()
    (group,) = find_groups(model).groups
    linears = make_linear_module(group, 6, CPU)
    for name, own in zip(group.names, linears.group.names, strict=True):
        state = model.get_submodule(name).state_dict()
        linears.module.get_submodule(own).load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(linears.module(*linears.inputs), model(*linears.inputs))


def test_rows_are_counted(language_model: nn.Module, model_inputs: Any) -> None:
    """Each group gets as many rows as its activation has, all leading dims together."""
    groups = find_groups(language_model).groups
    assert count_rows(
        language_model, groups, lambda: language_model(*model_inputs)
    ) == dict.fromkeys(groups, (7,))


def test_rows_of_several_calls_are_all_counted(gated: Callable[..., nn.Module]) -> None:
    """A layer that is called with several sizes has all of them; an uncalled layer has none."""
    model = nn.ModuleDict({"used": gated(), "unused": gated()}).eval()
    used, unused = find_groups(model).groups

    def call() -> None:
        for size in ((2, 5, 32), (32,), (10, 32)):
            model["used"](torch.zeros(size))

    assert count_rows(model, [used, unused], call) == {used: (1, 10), unused: ()}


def test_counting_leaves_no_hooks(language_model: nn.Module) -> None:
    """Not even after an error in the call."""

    def fail() -> None:
        raise RuntimeError("no inputs")

    with pytest.raises(RuntimeError, match="no inputs"):
        count_rows(language_model, find_groups(language_model).groups, fail)
    assert all(not module._forward_pre_hooks for module in language_model.modules())
