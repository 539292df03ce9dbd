"""The digest of the graphs that torch.compile captures: what changes it, and what has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from warmup.inductor.dynamic_dims import mark_range
from warmup.inductor.graph_digest import describe_settings, digest_graphs


class _Net(nn.Module):
    def __init__(self, act: Callable[..., torch.Tensor] = torch.relu, width: int = 8) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(4, width), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.up(x))


def _digest(model: nn.Module, x: torch.Tensor | None = None) -> str | None:
    return digest_graphs(model, (torch.ones(3, 4) if x is None else x,), {})


def test_the_same_model_has_the_same_digest_twice() -> None:
    """In one process, whatever the values of its weights and inputs."""
    assert _digest(_Net()) == _digest(_Net(), torch.zeros(3, 4)) is not None


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (_Net(torch.tanh), torch.ones(3, 4)),
        (_Net(width=16), torch.ones(3, 4)),
        (_Net().double(), torch.ones(3, 4).double()),
        (_Net(), torch.ones(5, 4)),
        (_Net(), torch.ones(4, 3).t()),
        (_Net(lambda y: y.clamp(0.0, 2.0)), torch.ones(3, 4)),
        (_Net(lambda y: y.clamp(0.0, 3.0)), torch.ones(3, 4)),
        (nn.Sequential(_Net(), nn.Linear(8, 8)), torch.ones(3, 4)),
    ],
    ids=["op", "width", "dtype", "size", "stride", "argument", "constant", "layer"],
)
def test_a_change_changes_the_digest(model: nn.Module, x: torch.Tensor) -> None:
    """An operation, a constant, a size, a stride, a dtype, a layer."""
    assert _digest(model, x) not in (None, _digest(_Net()))


def test_two_constants_are_two_digests() -> None:
    """Arguments of operations are part of it."""
    two = {_digest(_Net(lambda y: y.clamp(0.0, 2.0))), _digest(_Net(lambda y: y.clamp(0.0, 3.0)))}
    assert len(two) == 2


def test_a_range_is_part_of_the_digest() -> None:
    """A dim with a range is not a dim of that size, and each range is another."""

    def ranged(low: int) -> torch.Tensor:
        x = torch.ones(8, 4)
        mark_range(x, 0, low, 8)
        return x

    found = [_digest(_Net(), x) for x in (torch.ones(8, 4), ranged(2), ranged(4), ranged(2))]
    assert None not in found
    assert (len(set(found)), found[1]) == (3, found[3])


def test_each_side_of_a_graph_break_counts() -> None:
    """What follows the break is a graph of its own."""

    class Broken(nn.Module):
        def __init__(self, act: Callable[..., torch.Tensor]) -> None:
            super().__init__()
            self.act = act

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            torch._dynamo.graph_break()
            return self.act(y)

    assert None not in (one := (_digest(Broken(torch.relu)), _digest(Broken(torch.tanh))))
    assert one[0] != one[1]


def test_an_operation_of_another_project_has_no_digest() -> None:
    """Its code may change without a trace in the graph."""

    @torch.library.custom_op("warmup_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    assert _digest(_Net(twice)) is None


def test_a_model_that_fails_has_no_digest() -> None:
    """The build that follows reports the failure."""
    assert _digest(_Net(), torch.ones(3, 5)) is None


def test_a_pass_of_the_users_own_leaves_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that is a function may do anything to a graph."""
    import torch._inductor.config as options

    before = describe_settings()
    assert before is not None
    with options.patch(coordinate_descent_tuning=not options.coordinate_descent_tuning):
        assert describe_settings() not in (before, None)
    with options.patch(post_grad_custom_post_pass=lambda _graph: None):
        assert describe_settings() is None
    assert describe_settings() == before
