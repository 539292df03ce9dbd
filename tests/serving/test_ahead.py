"""Arguments of a call by name: calls that mean the same are alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warmup.core.errors import ModelError
from warmup.serving.compiled.ahead import argument_names


class Net(nn.Module):
    """A model."""

    def forward(self, x: Any, mask: Any = None, *, scale: Any = 1.0, **others: Any) -> Any:
        """Return the arguments."""
        return x, mask, scale, others


class Loose(nn.Module):
    """A model whose arguments have no names."""

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the arguments."""
        return tensors


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {"more": 2}), ((), {"more": 2, "x": 1}), ((1, None), {"more": 2, "scale": 1.0})],
)
def test_equal_calls_have_equal_names(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """By position, by name in any order, and with a default that is passed."""
    scale = Net.forward.__kwdefaults__["scale"]
    given = {name: scale if name == "scale" else value for name, value in kwargs.items()}
    named = argument_names(Net()).named(args, given)
    assert named is not None
    assert list(named.items()) == [("x", 1), ("more", 2)]


def test_more_arguments_than_forward_has_are_no_call() -> None:
    """None stands for a call that forward refuses."""
    assert argument_names(Net()).named((1, 2, 3), {}) is None


def test_arguments_without_names_are_refused() -> None:
    """An artifact passes every argument by name."""
    with pytest.raises(ModelError, match="takes tensors by position only"):
        argument_names(Loose())
