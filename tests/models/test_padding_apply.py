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
from padding_models import Gated, pad_all
from torch import nn

from warmup.core.errors import SettingsError
from warmup.keys.pad import Padding
from warmup.models.weight_groups import PaddedLinear, find_groups, pad, restore

ModelInputs = tuple[torch.Tensor, torch.Tensor]
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def padded_linears(model: nn.Module) -> list[PaddedLinear]:
    return [module for module in model.modules() if isinstance(module, PaddedLinear)]


def held(model: nn.Module) -> int:
    storages = [tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


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
    st.integers(1, 70),
    st.integers(1, 70),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from([min, max]),
)
def test_padding_is_exact(hidden: int, inner: int, biases: Any, pick: Callable[..., int]) -> None:
    """With small integers, whose sums do not round, the numbers are the same."""
    layer = Gated(hidden, inner, biases=biases, activation=torch.relu)
    single = nn.Sequential(nn.Linear(hidden, inner, bias=biases[0]))
    for model in (layer, single):
        for parameter in model.parameters():
            parameter.data = torch.randint(-3, 4, parameter.shape).float()
        x = torch.randint(-3, 4, (3, 2, hidden)).float()
        before = model.eval()(x)
        groups = pad_all(model, pick)
        assert len(padded_linears(model)) == sum(len(group.names) for group in groups)
        assert torch.equal(model(x), before)


def test_a_padded_model_is_the_same_model(
    language_model: nn.Module, model_inputs: ModelInputs
) -> None:
    """The same objects under the same names, the same state dict, ties, and memory but padding."""
    before, state = language_model(*model_inputs), copy.deepcopy(language_model.state_dict())
    modules, bytes_before = dict(language_model.named_modules()), held(language_model)
    parameters = {name: (p, p.shape) for name, p in language_model.named_parameters()}
    pad_all(language_model)
    assert len(padded_linears(language_model)) == 5
    assert dict(language_model.named_modules()) == modules
    assert {n: (p, p.shape) for n, p in language_model.named_parameters()} == parameters
    after = language_model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], value) for name, value in state.items())
    torch.testing.assert_close(language_model(*model_inputs), before)
    head, embed = language_model.get_submodule("head"), language_model.get_submodule("embed")
    assert head.weight is embed.weight
    assert is_one_memory(head)  # type: ignore[arg-type]  # padded, as the count says
    # 3 rows of 32 in the head; 2 * 3 rows of 32 and 2 * 3 biases, 32 rows of 3; 32 rows of 2.
    assert held(language_model) - bytes_before == 4 * (3 * 32 + 6 * 32 + 6 + 32 * 3 + 32 * 2)


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
    """As when adapters are merged; a deep copy has memory of its own."""
    other = copy.deepcopy(language_model)
    pad_all(language_model)
    apart, before = copy.deepcopy(language_model), language_model(*model_inputs)
    for model in (language_model, other):
        for parameter in model.parameters():
            parameter.add_(0.125)
    torch.testing.assert_close(language_model(*model_inputs), other(*model_inputs))
    assert all(map(is_one_memory, padded_linears(language_model)))
    torch.testing.assert_close(apart(*model_inputs), before)


def test_a_copied_or_moved_model_is_still_padded(
    language_model: nn.Module, model_inputs: ModelInputs
) -> None:
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


def test_restore_undoes_it(language_model: nn.Module, model_inputs: ModelInputs) -> None:
    """Plain Linears, numbers to the bit, memory; nothing is left, and it can be padded again."""
    before, bytes_before = language_model(*model_inputs), held(language_model)
    attributes = {name: set(vars(module)) for name, module in language_model.named_modules()}
    parameters = dict(language_model.named_parameters())
    groups = pad_all(language_model)
    restore(language_model)
    assert padded_linears(language_model) == []
    assert torch.equal(language_model(*model_inputs), before)
    assert held(language_model) == bytes_before
    after = {name: set(vars(module)) for name, module in language_model.named_modules()}
    assert after == attributes
    assert dict(language_model.named_buffers()) == {}
    assert all(p is parameters[name] for name, p in language_model.named_parameters())
    assert all(p.is_contiguous() for p in language_model.parameters())
    assert pad_all(language_model, max) == groups
    torch.testing.assert_close(language_model(*model_inputs), before)


def test_a_model_in_training_or_padded_already_is_refused(gated: Callable[..., nn.Module]) -> None:
    model = gated().eval()
    (group,) = find_groups(model).groups
    with pytest.raises(SettingsError, match="training mode"):
        pad(model.train(), {group: Padding(48)})
    pad(model.eval(), {group: Padding(45)})  # its own size is left as it is
    assert padded_linears(model) == []
    pad(model, {group: Padding(48)})
    with pytest.raises(SettingsError, match="padded already"):
        pad(model, {group: Padding(48)})


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
