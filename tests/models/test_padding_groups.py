"""Which Linears are padded together, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from warmup.keys.gemm import Dim
from warmup.models.weight_groups import FoundGroups, find_groups

F = nn.functional


def names_of(model: nn.Module) -> list[tuple[str, ...]]:
    return [group.names for group in find_groups(model.eval()).groups]


def forms_of(model: nn.Module) -> list[str]:
    return [group.structure.form for group in find_groups(model.eval()).groups]


def reasons_of(model: nn.Module) -> dict[str, str]:
    found = find_groups(model.eval())
    return {", ".join(each.names): each.reason for each in found.unpadded}


class Lambda(nn.Module):
    """Three Linears and what *function* does in between, with this module at hand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(32, 45), nn.Linear(32, 45)
        self.second = nn.Linear(45, 32)
        self.scale = nn.Parameter(torch.ones(45))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def between(function: Callable[..., Any]) -> nn.Module:
    """Return a model with *function* of one or two padded values between its Linears."""
    if function.__code__.co_argcount == 1:
        return Lambda(lambda m, x: m.second(function(m.first(x))))
    return Lambda(lambda m, x: m.second(function(m.first(x), m.other(x))))


def test_a_gated_layer_is_one_chain(gated: Callable[..., nn.Module]) -> None:
    (group,) = find_groups(gated(biases=(True, False, True)).eval()).groups
    assert (str(group), group.structure.key(Dim.of(7))) == (
        "gate, up, down",
        "weight chain m=7 in=32,32 features=45 out=32 f32 bias=101 via=mul(silu(p0),p1) fp32=ieee",
    )


def test_chains_stand_where_a_module_can_be_traced(language_model: nn.Module) -> None:
    """Single Linears stand anywhere; a model may be a Linear itself."""
    found = find_groups(language_model)
    assert {str(group): group.structure.form for group in found.groups} == {
        "patch": "k",
        "mlp.gate, mlp.up, mlp.down": "chain",
        "head": "n",
    }
    assert found.unpadded == ()
    assert str(*find_groups(nn.Linear(32, 45).eval()).groups) == "(model)"


def test_only_what_is_unaligned_in_bytes_is_padded(gated: Callable[..., nn.Module]) -> None:
    """Rows that start at 16 bytes need no padding: 44 elements in f32, and not in bf16."""
    assert find_groups(gated(32, 48).eval()) == FoundGroups((), ())
    for dtype, count in ((torch.bfloat16, 1), (torch.float32, 0)):
        assert len(names_of(gated(32, 44).to(dtype))) == count


def test_zeros_survive() -> None:
    for function, expression in (
        (lambda x, y: F.silu(x) * y, "mul(silu(p0),p1)"),
        (lambda x, y: torch.mul(y, F.relu(x)), "mul(p1,relu(p0))"),
        (lambda x, y: torch.sigmoid(x) * y, "mul(sigmoid(p0),p1)"),  # sigmoid(0) is not zero
        (lambda x: F.gelu(x), "gelu(p0)"),  # noqa: PLW0108  a function of Python
        (lambda x: F.gelu(x, approximate="tanh"), "gelu(p0,tanh)"),
        (lambda x: x * torch.sigmoid(1.702 * x), "mul(p0,sigmoid(mul(p0,1.702)))"),
        (lambda x: F.relu(x, inplace=True), "relu(p0)"),
        (lambda x: F.relu(x) ** 2, "pow(relu(p0),2)"),
        (lambda x: F.leaky_relu(x, 0.2), "leaky_relu(p0,0.2)"),
        (lambda x: F.hardswish(x, inplace=True), "hardswish(p0)"),
        (lambda x: F.softsign(x + 0), "div(add(p0,0),add(abs(add(p0,0)),1))"),
        (lambda x: torch.where(x > 1, x, -x), "where(gt(p0,1),p0,neg(p0))"),
        (lambda x: F.dropout(x, 0.1, training=False), "p0"),
        (lambda x: x.contiguous().clone().detach(), "p0"),
        (lambda x: F.silu(x.float()).to(torch.bfloat16), "to(silu(to(p0,f32)),bf16)"),
        (lambda x: x.float().to(x.dtype), "to(to(p0,f32),bf16)"),
    ):
        groups = find_groups(between(function).to(torch.bfloat16).eval()).groups
        assert expression in [group.structure.via for group in groups], expression
    for activation in (nn.SiLU(inplace=True), nn.Identity(), nn.Sequential(nn.Tanh(), nn.ReLU())):
        model = nn.Sequential(nn.Linear(32, 45), activation, nn.Linear(45, 32))
        assert names_of(model) == [("0", "2")], activation


def test_where_zeros_are_not_sure_to_survive_there_is_no_chain() -> None:
    """Values other than zero or NaN, sizes that are read, features that are mixed, and others."""
    for reason, functions in {
        "of zeros is not zero": (
            lambda x: torch.sigmoid(x),  # noqa: PLW0108  as above
            lambda x: torch.exp(x) + 1,
            lambda x, y: x / y,
            lambda x: 0.0 * torch.log(x),
            lambda x: x.masked_fill(x == 0, 2.0),
            lambda x: x.add_(1) * 0 + x,  # the change in place is followed
        ),
        "element by element": (
            lambda x: F.softmax(x, -1),
            lambda x: F.layer_norm(x, (45,)),
            lambda x: x - x.mean(),
            lambda x: x @ x,
            lambda x: x.flip(-1),
            lambda x: x.flatten(1),
            lambda x: x[..., :100],
            lambda x: torch.cat([x, x], -1),
            lambda x: F.dropout(x, 0.1, training=True),
            lambda x: torch.rand_like(x) * x,
        ),
        "reads the size": (lambda x: x * x.shape[-1], lambda x: x / x.numel()),
        "cannot be tried": (lambda x: x.nonexistent(),),
    }.items():
        for number, function in enumerate(functions):
            (unpadded, *_) = find_groups(between(function).eval()).unpadded
            assert unpadded.names[0] == "first", (reason, number)
            assert reason in unpadded.reason, (reason, number)


def test_other_readers_and_values_break_a_chain() -> None:
    for function, reason in (
        (lambda m, x: m.second(m.first(x) * m.scale), "mul also reads scale"),
        (lambda m, x: m.second(m.first(x) * x), "mul also reads x"),
        (lambda m, x: (m.second(y := m.first(x)), y), "the caller reads the features"),
        (lambda m, x: m.first(x) if x.sum() > 0 else m.second(x), "cannot be traced"),
    ):
        model = Lambda(function)
        assert [form for form in forms_of(model) if form == "chain"] == [], reason
        assert reason in next(iter(reasons_of(model).values())), reason
    norm = nn.Sequential(nn.Linear(32, 45), nn.LayerNorm(45), nn.Linear(45, 32))
    assert reasons_of(norm) == {"0": "not padded as a chain: 1 reads the features"}
    # One of the calls of a Linear may get other features.
    twice = Lambda(lambda m, x: m.second(m.first(x)) + m.second(m.scale))
    assert "chain" not in forms_of(twice)


def test_a_linear_is_in_one_chain() -> None:
    """A consumer of a chain is no producer of the next; of a broken chain it may be."""
    layers = nn.Linear(32, 45), nn.ReLU(), nn.Linear(45, 45), nn.Linear(45, 32)
    assert names_of(nn.Sequential(*layers)) == [("0", "2"), ("3",)]
    broken = nn.Sequential(layers[0], nn.Sigmoid(), layers[2], nn.ReLU(), layers[3])
    assert names_of(broken) == [("0",), ("2", "4")]
    assert [*reasons_of(broken)] == ["0, 2"]


def test_a_linear_reached_from_elsewhere_is_in_no_chain(gated: Callable[..., nn.Module]) -> None:
    """A caller outside would get padded features; of a module with two names nobody does."""
    model = nn.ModuleDict({"mlp": gated()})
    model["probe"] = model["mlp"].gate
    assert ("mlp.gate",) in names_of(model)
    layer = gated()
    twice = nn.ModuleDict({"one": layer, "two": layer})
    assert names_of(twice) == [("one.gate", "one.up", "one.down")]


def test_tied_weights_are_left() -> None:
    """An embedding reads rows of its weight, whose length stays; of two Linears neither is free."""
    model = nn.ModuleDict({"embed": nn.Embedding(32, 45), "back": nn.Linear(45, 32)})
    model["back"].weight = model["embed"].weight
    assert names_of(model) == []
    assert reasons_of(model) == {
        "back": "its weight is also that of embed; columns of tied weights are not padded"
    }
    model = nn.ModuleDict({"one": nn.Linear(32, 45), "two": nn.Linear(32, 45)})
    model["two"].weight = model["one"].weight
    assert [*reasons_of(model).values()] == [
        "has its weight in common with two",
        "has its weight in common with one",
    ]


def changed(change: Callable[[nn.Linear], object]) -> nn.Linear:
    linear = nn.Linear(32, 45)
    change(linear)
    return linear


def made_for_inference() -> nn.Linear:
    with torch.inference_mode():
        return nn.Linear(32, 45)


def share_memory(linear: nn.Linear) -> None:
    flat = torch.ones(45 * 32 + 45)
    linear.weight.data, linear.bias.data = flat[:-45].view(45, 32), flat[-45:]


def transpose(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(torch.ones(32, 45).t())


def test_a_linear_that_is_not_plain_is_unpadded() -> None:
    for linear, reason in (
        (nn.LazyLinear(45), "is a LazyLinear, not a plain Linear"),
        (
            nn.utils.parametrizations.weight_norm(nn.Linear(32, 45)),
            "is a ParametrizedLinear, not a plain Linear",
        ),
        (
            changed(lambda each: each.register_forward_hook(lambda *_: None)),
            "has hooks or a forward of its own",
        ),
        (
            changed(lambda each: setattr(each, "forward", torch.relu)),
            "has hooks or a forward of its own",
        ),
        (made_for_inference(), "was made in inference mode"),
        (changed(transpose), "its weight is not a contiguous matrix of its two sizes"),
        (changed(share_memory), "shares memory with another tensor"),
        (nn.Linear(32, 45, device="meta"), "has no values yet, it is on the meta device"),
    ):
        model = nn.ModuleDict({"fc": linear})
        assert (names_of(model), reasons_of(model)) == ([], {"fc": reason})


def test_hooks_and_values_that_are_kept_would_see_the_padding(
    gated: Callable[..., nn.Module],
) -> None:
    model = gated(activation=nn.SiLU())
    model.get_submodule("activation").register_forward_hook(lambda *_: None)
    assert forms_of(model) == ["n", "n", "k"]
    assert reasons_of(model) == {"gate, up, down": "not padded as a chain: activation has hooks"}
    keeping = gated().eval()

    def keep(x: torch.Tensor) -> torch.Tensor:
        keeping.kept = F.silu(x)
        return keeping.kept

    keeping.activation = keep
    before = dict(vars(keeping))
    assert [*reasons_of(keeping).values()] == ["not padded as a chain: Gated.forward sets kept"]
    assert vars(keeping) == before
