"""Which Linears are padded together, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from warmup.keys.gemm import Dim
from warmup.models.weight_groups import FoundGroups, find_groups

M = Dim.of(7)


def keys_of(found: FoundGroups) -> dict[str, str]:
    return {str(group): group.structure.key(M) for group in found.groups}


def reasons_of(found: FoundGroups) -> dict[str, str]:
    """Return the reasons why Linears are not padded, by their names."""
    return {", ".join(each.names): each.reason for each in found.unpadded}


class Lambda(nn.Module):
    """Two Linears and what *function* does in between, with this module at hand."""

    def __init__(self, function: Callable[..., Any], inner: int = 45) -> None:
        super().__init__()
        self.first = nn.Linear(32, inner)
        self.second = nn.Linear(inner, 32)
        self.scale = nn.Parameter(torch.ones(inner))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        """Call the function."""
        return self.function(self, x)


def test_a_gated_layer_is_one_chain(gated: Callable[..., nn.Module]) -> None:
    """Gate, up and down share their features: one decision."""
    assert keys_of(find_groups(gated(biases=(True, False, True)).eval())) == {
        "gate, up, down": (
            "weight chain m=7 in=32,32 features=45 out=32 f32 bias=101 via=mul(silu(p0),p1)"
            " fp32=ieee"
        )
    }


def test_a_gate_of_sigmoids_is_a_chain(gated: Callable[..., nn.Module]) -> None:
    """sigmoid(0) is not zero, its product with a zero is."""
    (group,) = find_groups(gated(activation=torch.sigmoid).eval()).groups
    assert group.structure.via == "mul(sigmoid(p0),p1)"


def test_a_model_of_several_kinds(language_model: nn.Module) -> None:
    """Chains are found in modules that can be traced, single Linears anywhere."""
    found = find_groups(language_model)
    assert {str(group): group.structure.form for group in found.groups} == {
        "patch": "k",
        "mlp.gate, mlp.up, mlp.down": "chain",
        "head": "n",
    }
    assert found.unpadded == ()


def test_only_what_is_unaligned_in_bytes_is_padded(gated: Callable[..., nn.Module]) -> None:
    """Where rows start at 16 bytes there is nothing to pad."""
    assert find_groups(gated(32, 48).eval()) == FoundGroups((), ())
    # 44 elements are aligned in f32 and not in bf16.
    for dtype, count in ((torch.bfloat16, 1), (torch.float32, 0)):
        assert len(find_groups(gated(32, 44).to(dtype).eval()).groups) == count


def test_modules_in_between_are_traced_into() -> None:
    """Activations of torch and sequences of them keep the chain."""
    for activation in (
        nn.ReLU(),
        nn.SiLU(inplace=True),
        nn.GELU("tanh"),
        nn.Identity(),
        nn.Dropout(0.1),
        nn.Sequential(nn.Tanh(), nn.Hardswish()),
    ):
        model = nn.Sequential(nn.Linear(32, 45), activation, nn.Linear(45, 32)).eval()
        assert [group.names for group in find_groups(model).groups] == [("0", "2")], activation


def test_where_zeros_are_not_sure_to_survive_there_is_no_chain() -> None:
    """The reason is reported, and each Linear is a group of its own."""
    for function, reason in (
        (lambda m, x: m.second(torch.sigmoid(m.first(x))), "sigmoid(p0) of zeros is not zero"),
        (lambda m, x: m.second(m.first(x) + 1), "add(p0,1) of zeros is not zero"),
        (lambda m, x: m.second(m.first(x).softmax(-1)), "element by element"),
        (lambda m, x: m.second(m.first(x) * m.scale), "mul also reads scale"),
        (lambda m, x: m.second(m.first(x) * x), "mul also reads x"),
        (lambda m, x: (m.second(y := m.first(x)), y), "the caller reads the features"),
        (lambda m, x: m.second(m.first(x).flatten(1)), "element by element"),
        (lambda m, x: m.second(y := m.first(x)) * y.shape[-1], "reads the size"),
        (lambda m, x: m.first(x) if x.sum() > 0 else m.second(x), "cannot be traced"),
        (lambda m, x: m.second(nn.functional.dropout(m.first(x))), "element by element"),
    ):
        found = find_groups(Lambda(function).eval())
        assert [(str(each), each.structure.form) for each in found.groups] == [
            ("first", "n"),
            ("second", "k"),
        ], (function, reason)
        (unpadded,) = found.unpadded
        assert unpadded.names[0] == "first", (function, reason)
        assert reason in unpadded.reason, (function, reason)


def test_what_others_see_is_in_no_chain() -> None:
    """A norm over the features would see the padding."""
    found = find_groups(
        nn.Sequential(nn.Linear(32, 45), nn.LayerNorm(45), nn.Linear(45, 32)).eval()
    )
    assert reasons_of(found) == {"0": "not padded as a chain: 1 reads the features"}
    # One of its calls may get other features.
    model = Lambda(lambda m, x: m.second(m.first(x)) + m.second(m.scale)).eval()
    assert [group.structure.form for group in find_groups(model).groups] == ["n", "k"]


def test_a_chain_of_two_layers_pads_the_first_features() -> None:
    """A Linear is in one group: a consumer of a chain is no producer of the next."""
    model = nn.Sequential(nn.Linear(32, 45), nn.ReLU(), nn.Linear(45, 45), nn.Linear(45, 32)).eval()
    found = find_groups(model)
    assert [group.names for group in found.groups] == [("0", "2"), ("3",)]


def test_a_broken_chain_leaves_the_next_one_whole() -> None:
    """A Linear that could not consume padded features may still produce some."""
    model = nn.Sequential(
        nn.Linear(32, 45), nn.Sigmoid(), nn.Linear(45, 45), nn.ReLU(), nn.Linear(45, 32)
    ).eval()
    found = find_groups(model)
    assert [group.names for group in found.groups] == [("0",), ("2", "4")]
    assert list(reasons_of(found)) == ["0, 2"]


def test_several_consumers_are_one_chain() -> None:
    model = Lambda(lambda m, x: m.second(y := torch.tanh(m.first(x))) + m.third(torch.relu(y)))
    model.third = nn.Linear(45, 8)
    (group,) = find_groups(model.eval()).groups
    assert (group.names, group.structure.outputs) == (("first", "second", "third"), (32, 8))
    assert group.structure.via == "tanh(p0);relu(tanh(p0))"


def test_two_chains_in_one_module_are_numbered_apart(gated: Callable[..., nn.Module]) -> None:
    inner = gated().eval()
    model = Lambda(lambda m, x: m.second(torch.relu(m.first(x))) + m.other.forward(x))
    model.other = inner
    vias = [group.structure.via for group in find_groups(model.eval()).groups]
    assert vias == ["relu(p0)", "mul(silu(p0),p1)"]


def test_a_linear_reached_from_elsewhere_is_in_no_chain(gated: Callable[..., nn.Module]) -> None:
    """A caller outside would get padded features."""
    model = nn.ModuleDict({"mlp": gated()}).eval()
    model["probe"] = model["mlp"].gate
    forms = {str(group): group.structure.form for group in find_groups(model).groups}
    assert forms["mlp.gate"] == "n"
    # A module under two names is one module; its Linears are reached through it alone.
    layer = gated()
    found = find_groups(nn.ModuleDict({"one": layer, "two": layer}).eval())
    assert [group.names for group in found.groups] == [("one.gate", "one.up", "one.down")]


def test_tied_columns_are_left() -> None:
    """An embedding reads rows of its weight; their length is not changed."""
    model = nn.ModuleDict({"embed": nn.Embedding(32, 45), "back": nn.Linear(45, 32)}).eval()
    model["back"].weight = model["embed"].weight
    found = find_groups(model)
    assert found.groups == ()
    assert reasons_of(found) == {
        "back": "its weight is also that of embed; columns of tied weights are not padded"
    }
    # Of two Linears neither can be padded without the other.
    model = nn.ModuleDict({"one": nn.Linear(32, 45), "two": nn.Linear(32, 45)}).eval()
    model["two"].weight = model["one"].weight
    assert reasons_of(find_groups(model)) == {
        "one": "has its weight in common with two",
        "two": "has its weight in common with one",
    }


class _Own(nn.Linear):
    """A Linear that may compute anything."""


def _hooked() -> nn.Linear:
    linear = nn.Linear(32, 45)
    linear.register_forward_hook(lambda *_: None)
    return linear


def _replaced() -> nn.Linear:
    linear = nn.Linear(32, 45)
    linear.forward = lambda x: x  # type: ignore[method-assign]
    return linear


def _made_for_inference() -> nn.Linear:
    with torch.inference_mode():
        return nn.Linear(32, 45)


def _transposed() -> nn.Linear:
    linear = nn.Linear(32, 45)
    linear.weight = nn.Parameter(torch.ones(32, 45).t())
    return linear


def _flat() -> nn.Linear:
    linear, flat = nn.Linear(32, 45), torch.ones(45 * 32 + 45)
    linear.weight.data, linear.bias.data = flat[:-45].view(45, 32), flat[-45:]
    return linear


def test_a_linear_that_is_not_plain_is_unpadded() -> None:
    """Each is reported with its reason, and no group is found."""
    for make, reason in (
        (lambda: _Own(32, 45), "is a _Own, not a plain Linear"),
        (lambda: nn.LazyLinear(45), "is a LazyLinear, not a plain Linear"),
        (
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(32, 45)),
            "is a ParametrizedLinear, not a plain Linear",
        ),
        (_hooked, "has hooks or a forward of its own"),
        (_replaced, "has hooks or a forward of its own"),
        (_made_for_inference, "was made in inference mode"),
        (_transposed, "its weight is not a contiguous matrix of its two sizes"),
        (_flat, "shares memory with another tensor"),
        (lambda: nn.Linear(32, 45, device="meta"), "has no values yet, it is on the meta device"),
    ):
        found = find_groups(nn.ModuleDict({"fc": make()}).eval())
        assert (found.groups, reasons_of(found)) == ((), {"fc": reason}), (make, reason)


def test_hooks_inside_of_a_layer_keep_it_from_being_a_chain(
    gated: Callable[..., nn.Module],
) -> None:
    """A hook on the activation would see the padding."""
    model = gated(activation=nn.SiLU())
    model.get_submodule("activation").register_forward_hook(lambda *_: None)
    found = find_groups(model.eval())
    assert [group.structure.form for group in found.groups] == ["n", "n", "k"]
    assert reasons_of(found) == {"gate, up, down": "not padded as a chain: activation has hooks"}


def test_a_forward_that_keeps_what_it_computes_is_no_chain(gated: Callable[..., nn.Module]) -> None:
    """Other code may read the value; the search itself leaves nothing in the module."""
    model = gated().eval()

    def keep(x: torch.Tensor) -> torch.Tensor:
        model.kept = nn.functional.silu(x)
        return model.kept

    model.activation = keep
    before = dict(vars(model))
    found = find_groups(model)
    assert reasons_of(found) == {"gate, up, down": "not padded as a chain: Gated.forward sets kept"}
    assert vars(model) == before


class _Seen(TorchDispatchMode):
    """Collects the tensors that operators get."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.given += [each for each in args if isinstance(each, torch.Tensor)]
        return func(*args, **(kwargs or {}))


def test_no_tensor_of_the_model_is_computed_with(language_model: nn.Module) -> None:
    """Operators run on a few zeros only, which are not the model's."""
    with _Seen() as seen:
        find_groups(language_model)
    own = {id(parameter) for parameter in language_model.parameters()}
    assert seen.given != []
    assert own.isdisjoint(id(each) for each in seen.given)


def test_a_linear_alone_is_a_model() -> None:
    """Its name is empty; messages call it the model."""
    found = find_groups(nn.Linear(32, 45).eval())
    assert keys_of(found) == {"(model)": "weight n m=7 in=32 features=45 f32 bias=1 fp32=ieee"}
