"""Padded Linears: same numbers, same parameters, same state dict, and back."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from padding_models import pad_all
from torch import nn

from warmup.core.errors import SettingsError
from warmup.keys.gemm import Dim
from warmup.keys.weight import Padding, padded_sizes
from warmup.models.padded_modules import PaddedLinear, pad, restore
from warmup.models.weight_groups import Group, find_groups

ModelInputs = tuple[torch.Tensor, torch.Tensor]
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients() -> Any:
    """No test here computes gradients."""
    with torch.no_grad():
        yield


def with_integers(model: nn.Module) -> nn.Module:
    """Give *model* small integers as weights, so that every order of summing gives the same."""
    for parameter in model.parameters():
        parameter.data = torch.randint(-3, 4, parameter.shape).to(parameter.dtype)
    return model.eval()


def padded_linears(model: nn.Module) -> list[PaddedLinear]:
    return [module for module in model.modules() if isinstance(module, PaddedLinear)]


def held(model: nn.Module) -> int:
    """Return the bytes of memory of all parameters and buffers."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(storages.values())


def is_one_memory(linear: PaddedLinear) -> bool:
    """Whether parameters and padded tensors share memory, and the padding is zero."""
    out, size = linear.weight.shape
    is_zero = not linear.padded_weight[out:].any() and not linear.padded_weight[:, size:].any()
    return linear.weight.data_ptr() == linear.padded_weight.data_ptr() and bool(is_zero)


def pickled(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@given(
    st.integers(1, 20),
    st.integers(1, 70),
    st.integers(1, 20),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from([min, max]),
)
def test_a_padded_chain_is_exact(
    hidden: int, inner: int, out: int, biases: Any, pick: Callable[..., int]
) -> None:
    """With integers, whose sums do not round, a padded layer computes the same numbers."""
    model = nn.ModuleDict(
        {
            "gate": nn.Linear(hidden, inner, bias=biases[0]),
            "up": nn.Linear(hidden, inner, bias=biases[1]),
            "down": nn.Linear(inner, out, bias=biases[2]),
        }
    )

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.parts
            return parts["down"](torch.relu(parts["gate"](x)) * parts["up"](x))

    layer = with_integers(Layer())
    x = torch.randint(-3, 4, (3, 2, hidden)).float()
    before = layer(x)
    choices = {
        group: Padding(pick(padded_sizes(group.structure.features, "f32")))
        for group in find_groups(layer).groups
    }
    pad(layer, choices)
    assert len(padded_linears(layer)) == sum(len(group.names) for group in choices)
    assert torch.equal(layer(x), before)


@given(st.integers(1, 70), st.integers(1, 70), st.booleans(), st.sampled_from([min, max]))
def test_a_padded_linear_is_exact(
    taken: int, made: int, bias: bool, pick: Callable[..., int]
) -> None:
    """So does a single Linear, whether it pads its input or cuts its output."""
    model = with_integers(nn.Sequential(nn.Linear(taken, made, bias=bias)))
    x = torch.randint(-3, 4, (5, taken)).float()
    before = model(x)
    pad(
        model,
        {
            g: Padding(pick(padded_sizes(g.structure.features, "f32")))
            for g in find_groups(model).groups
        },
    )
    after = model(x)
    assert after.shape == before.shape
    assert torch.equal(after, before)


def test_nothing_is_cut_or_padded_inside_of_a_chain(gated: Callable[..., nn.Module]) -> None:
    """Padded features go from Linear to Linear without a cut."""
    model = gated().eval()
    pad_all(model)
    seen: list[torch.Size] = []
    model.activation = lambda x: seen.append(x.shape) or nn.functional.silu(x)
    model(torch.randn(3, 32))
    assert seen == [torch.Size([3, 48])]


def test_a_padded_model_is_the_same_model(
    language_model: nn.Module, model_inputs: ModelInputs
) -> None:
    """The same objects under the same names, the same state dict, and outputs within rounding."""
    before, state = language_model(*model_inputs), copy.deepcopy(language_model.state_dict())
    modules = dict(language_model.named_modules())
    parameters = {name: (p, p.shape) for name, p in language_model.named_parameters()}
    pad_all(language_model)
    assert len(padded_linears(language_model)) == 5
    assert dict(language_model.named_modules()) == modules
    assert {n: (p, p.shape) for n, p in language_model.named_parameters()} == parameters
    assert isinstance(language_model.get_submodule("head"), nn.Linear)
    after = language_model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], value) for name, value in state.items())
    torch.testing.assert_close(language_model(*model_inputs), before)
    assert repr(language_model.get_submodule("head")) == (
        "PaddedLinear(in_features=32, out_features=101, bias=False, padded to 32 -> 104)"
    )


def test_a_state_dict_is_loaded(language_model: nn.Module, model_inputs: ModelInputs) -> None:
    """By copying, by assignment, and by torch's other way, which swaps tensors."""
    swap = torch.__future__.set_swap_module_params_on_conversion
    other = copy.deepcopy(language_model)
    for parameter in other.parameters():
        parameter.mul_(1.5)
    for way in ("copy", "assign", "swap"):
        model = copy.deepcopy(language_model)
        pad_all(model)
        swap(way == "swap")
        try:
            model.load_state_dict(other.state_dict(), assign=way == "assign")
        finally:
            swap(False)
        torch.testing.assert_close(model(*model_inputs), other(*model_inputs), msg=way)
        assert way == "swap" or all(map(is_one_memory, padded_linears(model))), way


def test_a_parameter_changed_in_place_is_computed_with(
    language_model: nn.Module, model_inputs: ModelInputs
) -> None:
    """As when adapters are merged: parameters are the memory that is multiplied with.

    A deep copy has memory of its own.
    """
    other = copy.deepcopy(language_model)
    pad_all(language_model)
    apart, before = copy.deepcopy(language_model), language_model(*model_inputs)
    for model in (language_model, other):
        for parameter in model.parameters():
            parameter.add_(0.125)
    torch.testing.assert_close(language_model(*model_inputs), other(*model_inputs))
    assert all(map(is_one_memory, padded_linears(language_model)))
    torch.testing.assert_close(apart(*model_inputs), before)


def test_tied_weights_stay_tied_and_are_held_once(language_model: nn.Module) -> None:
    """The embedding reads the first rows of what the head multiplies with."""
    before = held(language_model)
    pad_all(language_model)
    head, embed = language_model.get_submodule("head"), language_model.get_submodule("embed")
    assert isinstance(head, PaddedLinear)
    assert head.weight is embed.weight
    assert is_one_memory(head)
    # 3 rows of 32 in the head; 2 * 3 rows of 32 and 2 * 3 biases, 32 rows of 3; 32 rows of 2.
    assert held(language_model) - before == 4 * (3 * 32 + 6 * 32 + 6 + 32 * 3 + 32 * 2)


def test_a_copied_or_moved_model_is_still_padded(
    language_model: nn.Module, model_inputs: ModelInputs
) -> None:
    """The output is the same, parameters share memory with the padded tensors, and ties hold."""
    moves: dict[str, Callable[[nn.Module], nn.Module]] = {
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
        "double": lambda model: model.double().float(),
        "to": lambda model: model.to(torch.float64).to(torch.float32),
        "share_memory": lambda model: model.share_memory(),
        "requires_grad_": lambda model: model.requires_grad_(requires_grad=False),
        "pickle": pickled,
    }
    for name, move in moves.items():
        padded = copy.deepcopy(language_model)
        pad_all(padded)
        before = padded(*model_inputs)
        model = move(padded)
        assert torch.equal(model(*model_inputs), before), name
        assert len(padded_linears(model)) == 5, name
        assert all(map(is_one_memory, padded_linears(model))), name
        assert model.get_submodule("head").weight is model.get_submodule("embed").weight, name


def test_half_precision_is_that_of_the_unpadded_model(
    language_model: nn.Module, model_inputs: ModelInputs
) -> None:
    """Padded tensors are cast with the parameters."""
    tokens, pixels = model_inputs
    expected = copy.deepcopy(language_model).bfloat16()(tokens, pixels.bfloat16())
    pad_all(language_model)
    found = language_model.bfloat16()(tokens, pixels.bfloat16())
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected)


def test_a_model_moved_in_inference_mode_can_be_loaded(
    language_model: nn.Module, model_inputs: ModelInputs
) -> None:
    state, before = copy.deepcopy(language_model.state_dict()), language_model(*model_inputs)
    with torch.inference_mode():
        pad_all(language_model)
        language_model.double().float()
    language_model.load_state_dict(state)
    torch.testing.assert_close(language_model(*model_inputs), before)


def test_emptied_weights_are_padded_with_zeros_again(gated: Callable[..., nn.Module]) -> None:
    """`to_empty` leaves anything in memory, and weights are loaded after it."""
    model, x = gated().eval(), torch.randn(3, 32)
    state, before = copy.deepcopy(model.state_dict()), model(x)
    pad_all(model)
    model._apply(lambda tensor: torch.full_like(tensor, torch.nan))
    model.load_state_dict(state)
    torch.testing.assert_close(model(x), before)


def test_an_assigned_parameter_is_padded(language_model: nn.Module) -> None:
    """As when weights are tied anew, which assigns the parameter of another module.

    One of another size would need another padding, and the message says what to do; so is a state
    dict of padded sizes refused. Without its bias a padded Linear is a matmul alone.
    """
    pad_all(language_model)
    head, embed = language_model.get_submodule("head"), language_model.get_submodule("embed")
    embed.weight = nn.Parameter(torch.randn(101, 32))
    head.weight = embed.weight
    assert is_one_memory(head)
    hidden = torch.randn(2, 32)
    torch.testing.assert_close(head(hidden), hidden @ embed.weight.T)
    with pytest.raises(SettingsError, match=r"\(104, 32\).*restore"):
        head.weight = nn.Parameter(torch.zeros(104, 32))
    state = {**language_model.state_dict(), "head.weight": torch.zeros(104, 32)}
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        language_model.load_state_dict(state)
    model = nn.Sequential(nn.Linear(32, 45)).eval()
    pad_all(model)
    model[0].bias = None
    torch.testing.assert_close(model(hidden), hidden @ model[0].weight.T)


def test_restore_undoes_it(language_model: nn.Module, model_inputs: ModelInputs) -> None:
    """Plain Linears, numbers to the bit, memory; nothing is left, and it can be padded again."""
    before, bytes_before = language_model(*model_inputs), held(language_model)
    attributes = {name: set(vars(module)) for name, module in language_model.named_modules()}
    parameters = dict(language_model.named_parameters())
    groups = pad_all(language_model)
    restore(language_model)
    assert type(language_model.get_submodule("head")) is nn.Linear
    assert torch.equal(language_model(*model_inputs), before)
    assert held(language_model) == bytes_before
    assert {
        name: set(vars(module)) for name, module in language_model.named_modules()
    } == attributes
    assert dict(language_model.named_buffers()) == {}
    assert all(p is parameters[name] for name, p in language_model.named_parameters())
    assert all(p.is_contiguous() for p in language_model.parameters())
    assert (
        language_model.get_submodule("head").weight is language_model.get_submodule("embed").weight
    )
    assert pad_all(language_model, max) == groups
    torch.testing.assert_close(language_model(*model_inputs), before)


def test_misuse_is_an_error(gated: Callable[..., nn.Module]) -> None:
    """Of a model, a group or a size; its own size is left as it is."""

    def twice(model: nn.Module, group: Group) -> None:
        pad(model, {group: Padding(48)})
        pad(model, {group: Padding(48)})

    def of_another_model(model: nn.Module, group: Group) -> None:
        model.get_submodule("down").in_features = 7
        pad(model, {group: Padding(48)})

    cases: dict[str, Callable[[nn.Module, Group], None]] = {
        "training mode": lambda model, group: pad(model.train(), {group: Padding(48)}),
        "padded already": twice,
        "fewer than": lambda model, group: pad(model, {group: Padding(44)}),
        "find groups again": of_another_model,
        "for all numbers of rows or for none": lambda model, group: pad(
            model, {group: Padding(48, (Dim.of(3),))}
        ),
    }
    for message, misuse in cases.items():
        model = gated().eval()
        (group,) = find_groups(model).groups
        with pytest.raises(SettingsError, match=message):
            misuse(model, group)
    model = gated().eval()
    (group,) = find_groups(model).groups
    pad(model, {group: Padding(45)})
    assert padded_linears(model) == []


def test_rows_that_are_served_unpadded() -> None:
    """The output is that of the parameters, which are the first rows of the padded weight."""
    for rows, is_padded in ((3, True), (4, False), (8, False), (9, True)):
        model, x = nn.Linear(32, 101).eval(), torch.randn(2, rows, 32)[:1]
        before = model(x)
        (group,) = find_groups(model).groups
        pad(model, {group: Padding(104, (Dim(4, 6), Dim.of(8)))})
        torch.testing.assert_close(model(x), before)
        assert (model(x).stride(1) == 104) == is_padded, (rows, is_padded)
        restore(model)
        assert torch.equal(model(x), before), (rows, is_padded)


def test_when_memory_runs_out_nothing_is_padded(
    gated: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partly padded chain would be wrong: its padded Linears are restored."""
    model, x = gated().eval(), torch.randn(3, 32)
    before, zeros = model(x), torch.zeros
    (group,) = find_groups(model).groups

    def fail_at_the_third(size: Any, **kwargs: Any) -> torch.Tensor:
        if tuple(size) == (32, 48):
            raise torch.OutOfMemoryError("no room for it")
        return zeros(size, **kwargs)

    monkeypatch.setattr(torch, "zeros", fail_at_the_third)
    with pytest.raises(torch.OutOfMemoryError):
        pad(model, {group: Padding(48)})
    assert padded_linears(model) == []
    assert torch.equal(model(x), before)
