"""Stand-ins of groups, and how many rows groups are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from warmup.keys.weight import Padding, padded_sizes
from warmup.models.padding.apply import PaddedLinear, pad
from warmup.models.padding.groups import Group, find_groups
from warmup.tuning.weights.linear_module import make_standin
from warmup.tuning.weights.row_counts import rows_of

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
    """The one group of each model."""
    (found,) = find_groups(MODELS[request.param]().eval()).groups
    return found


def test_a_standin_has_the_structure_of_its_group(group: Group) -> None:
    """What is found in a stand-in is the one group that it was made of."""
    standin = make_standin(group, 6, CPU)
    assert find_groups(standin.module).groups == (standin.group,)
    assert standin.group.structure == group.structure


def test_a_standin_can_be_padded(group: Group) -> None:
    """Padded it gives the same for its inputs, of as many rows as were asked for."""
    standin = make_standin(group, 6, CPU)
    structure = group.structure
    with torch.no_grad():
        before = standin.module(*standin.inputs)
        padding = Padding(padded_sizes(structure.features, structure.dtype)[-1])
        pad(standin.module, {standin.group: padding})
        after = standin.module(*standin.inputs)
    assert any(isinstance(module, PaddedLinear) for module in standin.module.modules())
    assert [tuple(each.shape) for each in after] == [
        (6, size) for size in structure.outputs or (structure.features,)
    ]
    torch.testing.assert_close(after, before)


def test_a_standin_computes_what_its_group_does() -> None:
    """With the weights of the model it gives what the model gives."""
    model = Fork().eval()
    (group,) = find_groups(model).groups
    standin = make_standin(group, 6, CPU)
    for name, own in zip(group.names, standin.group.names, strict=True):
        state = model.get_submodule(name).state_dict()
        standin.module.get_submodule(own).load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(standin.module(*standin.inputs), model(*standin.inputs))


def test_rows_are_counted(speaker: nn.Module, spoken: Any) -> None:
    """Each group is given as many rows as its activation has, all leading dims together."""
    groups = find_groups(speaker).groups
    assert rows_of(speaker, groups, lambda: speaker(*spoken)) == dict.fromkeys(groups, (7,))


def test_rows_of_several_calls_are_all_counted(gated: Callable[..., nn.Module]) -> None:
    """A layer that is called with several sizes has them all, one that is not called none."""
    model = nn.ModuleDict({"used": gated(), "unused": gated()}).eval()
    used, unused = find_groups(model).groups

    def call() -> None:
        for size in ((2, 5, 32), (32,), (10, 32)):
            model["used"](torch.zeros(size))

    assert rows_of(model, [used, unused], call) == {used: (1, 10), unused: ()}


def test_counting_leaves_no_hooks(speaker: nn.Module) -> None:
    """Not even when the call fails."""

    def fail() -> None:
        raise RuntimeError("no inputs")

    with pytest.raises(RuntimeError, match="no inputs"):
        rows_of(speaker, find_groups(speaker).groups, fail)
    assert all(not module._forward_pre_hooks for module in speaker.modules())
