"""What a compile computes from weights is recorded, and made again from other weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx

from warmup.inductor.layers.form import UnshareableLayerError
from warmup.inductor.layers.weight_tape import WeightTape

_PLACES = ("L['layer']._parameters['up']", "L['layer']._parameters['down']")


def recorded(
    compute: Callable[..., Any], *weights: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[WeightTape, Any]:
    """Return the tape of a compile that does nothing but *compute*, and what that returned."""
    monkeypatch.setattr(compile_fx, "fx_codegen_and_compile", compute)
    tape = WeightTape()
    for weight, place in zip(weights, _PLACES, strict=False):
        tape.add_weight(weight, place)
    with tape, torch.no_grad():
        result = compile_fx.fx_codegen_and_compile(*weights)
    return tape, result


@pytest.mark.parametrize(
    "compute",
    [
        lambda up, _down: up,
        lambda up, _down: up.t(),
        lambda up, down: torch.cat([up, torch.zeros(3, 4), down]),
        lambda up, _down: torch.nn.functional.pad(up, (0, 2)).reshape(3, 3, 2).transpose(0, 1),
        lambda up, _down: up.split([1, 2])[1].contiguous(),
        lambda up, down: up.to(torch.bfloat16) @ down.to(torch.bfloat16).t(),
    ],
)
def test_other_weights_have_the_constants_that_a_compile_would_make(
    compute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constants of other weights are what the same operations make of them, byte for byte."""
    first = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    other = torch.randn(3, 4), torch.randn(5, 4)
    tape, constant = recorded(compute, *first, monkeypatch=monkeypatch)
    packing = tape.packing({"packed": constant})
    made = packing.constants(dict(zip(_PLACES, other, strict=True)))["packed"]
    assert tape.refusal is None
    assert torch.equal(made, compute(*other))
    assert not torch.equal(made, constant)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda up: up.sum().item(), "compiled for the values of its weights, which aten._local"),
        (lambda up: bool((up.t() == 1).all()), "compiled for the values of its weights"),
        (lambda up: torch.equal(up, up), "compiled for the values of its weights, which aten.eq"),
        (lambda up: torch.empty(3, 4).copy_(up), "has a weight that aten.copy_.default writes"),
    ],
)
def test_code_that_depends_on_values_is_refused(
    compute: Callable[..., Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compile that reads an element, or compares elements, is for no other layer."""
    tape, _ = recorded(compute, torch.randn(3, 4), monkeypatch=monkeypatch)
    assert tape.refusal is not None
    assert reason in tape.refusal


def test_a_constant_of_unknown_origin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that no recorded operation made of weights is not believed to be every layer's."""
    tape, _ = recorded(lambda up: up, torch.randn(3, 4), monkeypatch=monkeypatch)
    with pytest.raises(UnshareableLayerError, match="has a constant of unknown origin, packed"):
        tape.packing({"packed": torch.ones(3)})


def test_a_constant_that_is_not_made_again_alike_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A constant that was changed after it was recorded differs from the one made again."""
    tape, constant = recorded(lambda up: up * 2, torch.randn(3, 4), monkeypatch=monkeypatch)
    constant[0, 0] += 1
    with pytest.raises(UnshareableLayerError, match="cannot be made again, packed"):
        tape.packing({"packed": constant})


def test_two_weights_of_one_memory_are_refused() -> None:
    """Inductor takes them for one constant, which another layer may have two of."""
    weight, tape = torch.randn(3, 4), WeightTape()
    for place in _PLACES:
        tape.add_weight(weight.detach(), place)
    assert tape.refusal == "has one memory for layer.up and layer.down"


def test_a_weight_whose_changes_do_not_show_is_refused() -> None:
    """An inference tensor has no version, so its packed copy could be stale."""
    tape = WeightTape()
    with torch.inference_mode():
        tape.add_weight(torch.randn(3), _PLACES[0])
    assert tape.refusal == "has the inference tensor layer.up, whose changes do not show"
