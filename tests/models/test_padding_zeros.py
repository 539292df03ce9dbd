"""The values at the padding after an operation, and operations that padding cannot pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from warmup.models.weight_groups import (
    LostZerosError,
    PaddedValues,
    make_padding,
    propagate_padding,
)

F = nn.functional


def follow(function: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Any:
    """Return the padding of the result of *function*, which takes up to two padded values."""
    graph = fx.symbolic_trace(function).graph
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = make_padding(f"p{len(known)}", dtype)
        elif node.op == "output":
            return known[node.args[0]]
        else:
            known[node] = propagate_padding(node, known)
    raise AssertionError("no output")


def test_zeros_survive() -> None:
    """These keep zeros; the expression names the operators that they call."""
    for function, expression in (
        (lambda x: F.silu(input=x), "silu(p0)"),
        (lambda x, y: F.silu(x) * y, "mul(silu(p0),p1)"),
        (lambda x, y: torch.mul(y, F.relu(x)), "mul(p1,relu(p0))"),
        (lambda x, y: torch.sigmoid(x) * y, "mul(sigmoid(p0),p1)"),
        (lambda x: F.gelu(input=x), "gelu(p0)"),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu(p0,tanh)"),
        (lambda x: x * torch.sigmoid(1.702 * x), "mul(p0,sigmoid(mul(p0,1.702)))"),
        (lambda x: F.relu(x, inplace=True), "relu(p0)"),
        (lambda x: F.relu(x) ** 2, "pow(relu(p0),2)"),
        (lambda x: F.leaky_relu(x, 0.2), "leaky_relu(p0,0.2)"),
        (lambda x: F.hardswish(input=x), "hardswish(p0)"),
        (lambda x: F.softsign(input=x), "div(p0,add(abs(p0),1))"),
        (lambda x: torch.where(x > 1, x, -x), "where(gt(p0,1),p0,neg(p0))"),
        (lambda x: F.dropout(x, 0.1, training=False), "p0"),
        (lambda x: x.contiguous().clone().detach(), "p0"),
        (lambda x: F.silu(x.float()).to(torch.bfloat16), "to(silu(to(p0,f32)),bf16)"),
        (lambda x, y: x.float().to(y.dtype), "to(to(p0,f32),bf16)"),
    ):
        found = follow(function, torch.bfloat16)
        assert isinstance(found, PaddedValues), (function, expression)
        assert (found.is_zero, found.expression) == (True, expression), (function, expression)


def test_zeros_do_not_survive() -> None:
    """These compute element by element, and turn zeros into other values or into NaN."""
    for function in (
        lambda x: torch.sigmoid(input=x),
        lambda x: F.softplus(input=x),
        lambda x: torch.exp(input=x),
        lambda x: torch.cos(input=x),
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x, y: x / y,
        lambda x: 0.0 * torch.log(x),
        lambda x: x.masked_fill(x == 0, 2.0),
    ):
        found = follow(function)
        assert isinstance(found, PaddedValues), function
        assert not found.is_zero, function


def test_padding_does_not_pass() -> None:
    """These read sizes, mix features, draw random numbers, or use unpadded tensors."""
    for function in (
        lambda x: F.softmax(x, -1),
        lambda x: F.layer_norm(x, (5,)),
        lambda x: F.normalize(x, dim=-1),
        lambda x: F.glu(x, dim=0),
        lambda x: x.sum(-1, keepdim=True),
        lambda x: x - x.mean(),
        lambda x: x.cumsum(-1),
        lambda x: x.flip(-1),
        lambda x: x.roll(1, -1),
        lambda x: x.view(-1),
        lambda x: x.reshape(x.shape),
        lambda x: x.flatten(1),
        lambda x: x.flatten(0, 1),
        lambda x: x.transpose(0, 1),
        lambda x: x.unsqueeze(0),
        lambda x: x[..., :100],
        lambda x: x[..., 0],
        lambda x: x.chunk(1, -1),
        lambda x: x.split(5, -1),
        lambda x: torch.cat([x, x], -1),
        lambda x: x * x.size(-1),
        lambda x: x * x.shape[-1],
        lambda x: x / x.numel(),
        lambda x: x @ x,
        lambda x: F.dropout(x, 0.1, training=True),
        lambda x: torch.rand_like(x) * x,
        lambda x: x * torch.ones(5),
        lambda x: x.nonexistent(),
    ):
        with pytest.raises(LostZerosError):
            follow(function)


def test_a_value_that_is_not_known_is_named() -> None:
    """An operation with another operand, of whatever size, cannot be passed."""
    graph = fx.symbolic_trace(lambda x, y: x * y).graph
    x, _, product, _ = graph.nodes
    with pytest.raises(LostZerosError, match="mul also reads y"):
        propagate_padding(product, {x: make_padding("p0", torch.float32)})


def test_a_value_changed_in_place_is_followed() -> None:
    """What reads a value after it was changed in place sees the change."""

    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    assert not follow(function).is_zero
