"""`warmup.compile`: settings and calls that are refused, and attributes of the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import warmup
from warmup.core.buckets import DynamicDim
from warmup.serving.compiled_buckets import ServedModel, TensorArgument


class Mask(nn.Module):
    """A model with a mask."""

    scale = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, batch: Any = None) -> torch.Tensor:
        """Return x times the mask."""
        return self.linear(x) * batch["mask"][0]


def compiled(model: nn.Module | None = None, **settings: Any) -> Any:
    """Return a compiled model; *settings* replace settings that would work."""
    usual: dict[str, Any] = {"dims": {"x": {0: "n"}}, "buckets": "4,8"}
    return warmup.compile(model or Mask().eval(), **{**usual, **settings})


def test_settings_that_cannot_be_used_are_refused() -> None:
    for settings, said in (
        ({"policy": "nearest"}, "use one of range, pad, exact"),
        ({"outside": "guess"}, "use one of eager, error"),
        ({"policy": "pad"}, "independent= does not name n"),
        ({"dims": {"y": {0: "n"}}}, "forward has no argument 'y'; name one of x, batch"),
        ({"buckets": "8,4"}, "4 follows 8"),
        ({"buckets": {"m": "4"}}, "do not name the same dims"),
        ({"dims": {}}, "names no dynamic dim"),
    ):
        with pytest.raises(warmup.SettingsError, match=said):
            compiled(**settings)


def test_padded_inputs_of_graph_modes_have_cache_entries_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another artifact would load the graph without its static inputs (torch 2.11)."""
    tags: list[str] = []

    def note(_served: ServedModel, entry: Any, args: Any, kwargs: Any) -> Any:
        tags.append(torch.compiler.config.cache_key_tag)
        return entry, entry(*args, **kwargs)

    monkeypatch.setattr(ServedModel, "compile", note)
    for mode, expected in (("default", ""), ("reduce-overhead", "warmup-static")):
        padded = compiled(policy="pad", independent=("n",), buckets="8", mode=mode)
        padded(torch.ones(5, 4), batch={"mask": torch.ones(1, 4)})
        assert tags.pop() == expected, mode
    assert torch.compiler.config.cache_key_tag == ""


def test_a_build_for_ranges_refuses_buckets_that_descend() -> None:
    """As `warmup.compile` does, before the model is looked for."""
    with pytest.raises(warmup.SettingsError, match="16 follows 64"):
        warmup.build("absent.py", "64,16", options=warmup.BuildOptions(policy="range"))


def test_calls_and_models_that_cannot_be_served_are_refused() -> None:
    """A model in training mode, a call without the tensor, and a dim that the tensor lacks."""
    with pytest.raises(warmup.SettingsError, match=r"call model\.eval"):
        compiled(Mask())
    served = compiled(dims={"batch.mask.0": {0: "n"}})
    with pytest.raises(warmup.SettingsError, match=r"no tensor with the dim batch.mask.0\[0\]=n"):
        served(torch.ones(4, 4), batch={"mask": []})
    with pytest.raises(warmup.SettingsError, match=r"x\[2\]=n"):
        compiled(dims={"x": {2: "n"}})(torch.ones(4, 4))


def test_attributes_are_the_models() -> None:
    """Modules, state dict, methods, and attributes that are set; nothing is compiled meanwhile."""
    model = Mask().eval()
    served = compiled(model)
    served.scale = 3
    assert (model.scale, served.linear) == (3, model.linear)
    assert served.state_dict().keys() == model.state_dict().keys()
    assert not hasattr(served, "nothing")
    report = served.report()
    assert dict(report.artifacts) == {"n=1": 0, "n=2..4": 0, "n=5..8": 0}
    assert report.recompiles == 0


def test_containers_of_callers_are_left_alone() -> None:
    """Containers around a tensor that is replaced are copied."""
    argument = TensorArgument(Mask(), DynamicDim("n", ("batch", "mask", 0), 0))
    given = {"mask": [torch.ones(4), "kept"], "more": 1}
    before = copy.deepcopy(given)
    _, kwargs = argument.replace((), {"batch": given}, lambda tensor: tensor * 2)
    assert str(given) == str(before)
    assert torch.equal(kwargs["batch"]["mask"][0], torch.full((4,), 2.0))
    assert kwargs["batch"]["mask"][1:] == ["kept"]
    assert kwargs["batch"]["more"] == 1


def test_an_argument_may_be_positional_or_named() -> None:
    """The same tensor is found either way."""
    argument, x = TensorArgument(Mask(), DynamicDim("n", ("x",), 0)), torch.ones(4, 4)
    assert argument.find((x,), {}) is x
    assert argument.find((), {"x": x}) is x


def test_other_containers_are_refused() -> None:
    """A container of an unknown type cannot be copied."""

    class Own(dict[str, torch.Tensor]):
        """A container of its own."""

    argument = TensorArgument(Mask(), DynamicDim("n", ("batch", "mask"), 0))
    with pytest.raises(warmup.SettingsError, match="the tensor is in a Own"):
        argument.replace((), {"batch": Own(mask=torch.ones(4))}, lambda tensor: tensor)
