"""`warmup.compile`: what is refused, attributes of the model, and what its inputs say of sizes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import warmup
from warmup.core.buckets import Bucket, DynamicDim, Interval, ShapePolicy
from warmup.core.errors import ModelError
from warmup.models.loading import Inputs
from warmup.serving.compiled_buckets import (
    PaddedArtifact,
    ServedModel,
    TensorArgument,
    find_dims,
)


class Mask(nn.Module):
    """A model with a mask."""

    scale = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, batch: Any = None, **more: Any) -> torch.Tensor:
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
        ({"dims": {"y": {0: "n"}}, "model": nn.ReLU().eval()}, "forward has no argument 'y'"),
        ({"buckets": "8,4"}, "4 follows 8"),
        ({"buckets": {"m": "4"}}, "do not name the same dims"),
        ({"dims": {}}, "names no dynamic dim"),
        ({"model": Mask()}, r"call model\.eval"),
    ):
        with pytest.raises(warmup.SettingsError, match=said):
            compiled(**settings)
    # A build for ranges refuses them as well, before the model is looked for.
    with pytest.raises(warmup.SettingsError, match="16 follows 64"):
        warmup.build("absent.py", "64,16", options=warmup.BuildOptions(policy="range"))


def test_calls_that_cannot_be_served_are_refused() -> None:
    class Own(dict[str, torch.Tensor]):
        """A container of its own, which cannot be copied."""

    served = compiled(dims={"batch.mask.0": {0: "n"}})
    with pytest.raises(warmup.SettingsError, match=r"no tensor with the dim batch.mask.0\[0\]=n"):
        served(torch.ones(4, 4), batch={"mask": []})
    with pytest.raises(warmup.SettingsError, match=r"x\[2\]=n"):
        compiled(dims={"x": {2: "n"}})(torch.ones(4, 4))
    argument = TensorArgument(Mask(), DynamicDim("n", ("batch", "mask"), 0))
    with pytest.raises(warmup.SettingsError, match="the tensor is in a Own"):
        argument.replace((), {"batch": Own(mask=torch.ones(4))}, lambda tensor, _dim: tensor)


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


def test_attributes_are_the_models() -> None:
    model = Mask().eval()
    served = compiled(model)
    served.scale = 3
    assert (model.scale, served.linear) == (3, model.linear)
    assert served.state_dict().keys() == model.state_dict().keys()
    assert not hasattr(served, "nothing")
    assert dict(served.report().artifacts) == {"n=1": 0, "n=2..4": 0, "n=5..8": 0}


def test_containers_of_callers_are_left_alone() -> None:
    argument = TensorArgument(Mask(), DynamicDim("n", ("batch", "mask", 0), 0))
    given = {"mask": [torch.ones(4), "kept"], "more": 1}
    before = copy.deepcopy(given)
    _, kwargs = argument.replace((), {"batch": given}, lambda tensor, _dim: tensor * 2)
    assert str(given) == str(before)
    assert torch.equal(kwargs["batch"]["mask"][0], torch.full((4,), 2.0))
    assert (kwargs["batch"]["mask"][1:], kwargs["batch"]["more"]) == (["kept"], 1)


def test_rounding_is_told_from_an_effect_of_padding() -> None:
    """An artifact that is 5 % off for any input pads rows that do not depend on each other."""

    def scaled(_self: Any, x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    def centered(_self: Any, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)

    for function, is_padded in ((scaled, True), (centered, False)):
        model: nn.Module = type("Model", (nn.Module,), {"forward": function})()
        arguments = (TensorArgument(model, DynamicDim("rows", ("x",), 0)),)
        served = ServedModel(model, arguments, ShapePolicy.PAD, None, {"f32": 1e-3})
        artifact = PaddedArtifact(served, {"rows": Interval(1, 8)})
        artifact._compiled = lambda x, model=model: 1.05 * model(x)
        x = 1 + torch.rand(5, 4)
        torch.testing.assert_close(artifact._serve(x), model(x) * (1.05 if is_padded else 1))
        assert served.uncompiled.total() == (0 if is_padded else 1)


def found(make: Any, **sizes: int) -> dict[str, dict[int, str]]:
    bucket = Bucket(tuple(sizes.items()))
    return find_dims(Mask(), lambda bucket: make(**dict(bucket.sizes)), bucket)


def test_dims_are_known_by_path_and_number() -> None:
    """In positional and keyword arguments, dicts and lists; of one size or two, also equal ones."""

    def make(rows: int, seqlen: int) -> Inputs:
        batch = {"mask": [1, torch.ones(seqlen)], "scale": torch.ones(8)}
        named = {"batch": batch, "bias": torch.ones(4, seqlen)}
        return Inputs((torch.ones(rows, 4, seqlen),), named)

    expected = {"x": {0: "rows", 2: "seqlen"}, "batch.mask.1": {0: "seqlen"}, "bias": {1: "seqlen"}}
    for rows, seqlen in ((8, 16), (8, 8), (1, 1)):
        assert found(make, rows=rows, seqlen=seqlen) == expected


def test_inputs_that_cannot_have_a_range_are_refused() -> None:
    """The error names the input and both of its sizes, or another reason."""
    for make, message in (
        (lambda n: Inputs((torch.ones(2 * n),), {}), "input x, dim 0 is 32 where n=16, and 2"),
        (lambda n: Inputs((torch.ones(4),), {"n": n}), "no input grows with n"),
        (lambda n: Inputs((torch.ones((1,) * n),), {}), "n=16 and n=1 are not alike"),
        (lambda n: Inputs((torch.ones(n), 2), {}), "forward does not take the inputs"),
    ):
        with pytest.raises(ModelError, match=message):
            found(make, n=16)
