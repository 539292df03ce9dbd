"""The inputs that nobody named, found on fake tensors; nothing here is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmup.core.buckets import parse_buckets, parse_inputs
from warmup.core.errors import ModelError, SettingsError
from warmup.models.inputs import MAX_FAKE_RUNS, ResolvedInputs, resolve_inputs
from warmup.models.loading import load_model, make_inputs
from warmup.models.model_target import LoadedModel

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "programs" / "scripts"
EXAMPLES = ROOT / "examples"


def resolve(
    model: LoadedModel | nn.Module,
    *inputs: str,
    seqlens: str | None = "16,64",
    dims: str | None = None,
    dtype: torch.dtype | None = None,
) -> ResolvedInputs:
    loaded = model if isinstance(model, LoadedModel) else LoadedModel(model.eval(), None, "net")
    return resolve_inputs(loaded, parse_inputs(inputs), parse_buckets(seqlens, dims), dtype)


def spelled(resolved: ResolvedInputs) -> str:
    return " ".join(map(str, resolved.specs))


def net(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """Return a module with *forward*, a layer ``into`` of 40 features, and *parts*."""
    module: nn.Module = type("Net", (nn.Module,), {"forward": forward})()
    for name, part in {"into": nn.Linear(40, 24), **parts}.items():
        setattr(module, name, part)
    return module


def test_the_inputs_of_a_posted_script_are_inferred_and_accepted() -> None:
    for script, expected in (
        ("linear_script", "x=[seqlen,96]:f32"),
        ("bf16_mlp", "x=[seqlen,128]:bf16"),
        ("token_model", "idx=[1,seqlen]:i64"),
        ("convnet", "x=[seqlen,1,28,28]:f32"),
        ("model_instance", "x=[seqlen,48]:f32"),
        ("two_towers", "image_features=[seqlen,96]:f32 text_features=[seqlen,80]:f32"),
    ):
        model = load_model(str(SCRIPTS / f"{script}.py"))
        resolved = resolve(model)
        assert spelled(resolved) == expected, script
        (bucket, *_) = parse_buckets("16", None)
        made = make_inputs(model, resolved.specs, bucket, torch.device("cpu"), None)
        with torch.no_grad():
            model.module(*made.args, **made.kwargs)


def test_an_example_takes_its_own_inputs_or_inferred_ones() -> None:
    for target, expected in (
        ("mlp.py:MLP", ""),
        ("mlp.py:VisionLinear", "hidden_states=[seqlen,3420]:bf16"),
        ("unaligned.py:Gpt2Head", "x=[seqlen,768]:bf16"),
        ("llama_block.py:small", "hidden_states=[1,seqlen,128]:bf16"),
    ):
        assert spelled(resolve(load_model(str(EXAMPLES / target)))) == expected
    # Where no other inputs are accepted either, `example_inputs` stays.
    opaque = net(lambda self, x: torch.from_numpy(x.numpy()) + self.into(x))
    model = LoadedModel(opaque, lambda seqlen: torch.randn(seqlen, 40), "net", has_siblings=True)
    assert resolve(model).specs == ()


def test_a_misspelled_dim_is_no_other_model() -> None:
    """The names that `example_inputs` takes are said, and nothing is inferred in its place."""
    text = r"--dims has no size for seqlen of example_inputs\(seqlen\)"
    with pytest.raises(SettingsError, match=text):
        resolve(load_model(str(EXAMPLES / "mlp.py:MLP")), seqlens=None, dims="length=16")
    other = load_model(str(EXAMPLES / "mlp.py:VisionLinear"))
    assert "[length,3420]" in spelled(resolve(other, seqlens=None, dims="length=16"))


def test_named_inputs_dims_and_a_cast_are_kept() -> None:
    """The batch is the first dim; ids stay below the rows of the embedding."""
    tokens = resolve(load_model(str(SCRIPTS / "token_model.py")), dims="batch=1,8")
    assert spelled(tokens) == "idx=[batch,seqlen]:i64"
    assert [spec.below for spec in tokens.specs] == [65]
    towers = load_model(str(SCRIPTS / "two_towers.py"))
    resolved = resolve(towers, "image_features=[1,seqlen,96]:f32")
    assert spelled(resolved) == "image_features=[1,seqlen,96]:f32 text_features=[1,seqlen,80]:f32"
    assert [bool(spec.inferred_from) for spec in resolved.specs] == [False, True]
    script = load_model(str(SCRIPTS / "linear_script.py"))
    assert spelled(resolve(script, dtype=torch.bfloat16)) == "x=[seqlen,96]:bf16"


def batched(self: Any, x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    return self.into(x.reshape(batch * length, width))


def masked(self: Any, x: torch.Tensor, key_mask: torch.Tensor) -> torch.Tensor:
    return self.into(x).masked_fill(~key_mask[..., None], 0.0)


def reading(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.into(x) if x.max() > 0 and bool((x < 9).all()) else x


def optional(self: Any, input_ids: Any = None, embeddings: Any = None) -> Any:
    if input_ids is None:
        raise ValueError("give input_ids")
    return {"hidden": self.table(input_ids)}


def experts(self: Any, ids: torch.Tensor) -> torch.Tensor:
    """Products of groups, which on fake tensors torch computes in bfloat16 alone."""
    rows = self.table(ids).flatten(0, 1)
    ends = torch.tensor([len(rows) // 2, len(rows)], dtype=torch.int32)
    return torch._grouped_mm(rows, self.experts, offs=ends)


def encoder(side: int) -> nn.Module:
    """Return a vision transformer's beginning, which takes images of one size."""
    patches = nn.Conv2d(3, 8, 14, stride=14)
    return nn.Sequential(patches, nn.Flatten(2), nn.Linear((side // 14) ** 2, 4))


def test_forward_decides_the_form() -> None:
    """The form is the first that forward accepts: ranks, masks, values read, signals, defaults."""
    table, weights = nn.Embedding(99, 32), nn.Parameter(torch.randn(2, 32, 64))
    for module, expected in (
        (net(batched, out=nn.Linear(24, 8)), "x=[1,seqlen,40]:f32"),
        (net(masked), "x=[seqlen,40]:f32 key_mask=[seqlen]:bool"),
        (net(reading), "x=[seqlen,40]:f32"),
        (nn.Conv1d(6, 8, 3), "input=[1,6,seqlen]:f32"),
        (net(optional, table=table), "input_ids=[1,seqlen]:i64"),
        (net(experts, table=table, experts=weights), "ids=[1,seqlen]:i64"),
        (nn.LSTM(24, 16), "input=[seqlen,24]:f32"),
        (encoder(336), "input=[seqlen,3,336,336]:f32"),
        (encoder(518), "input=[seqlen,3,518,518]:f32"),
    ):
        assert spelled(resolve(module)) == expected


def test_the_model_and_the_random_state_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """No attribute of the model changes, nothing is printed, and no random number is drawn."""

    def keeping(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept = self.into(x)
        self.log.append(self.kept)
        print("forward")  # noqa: T201
        return self.kept

    module = net(keeping, kept=None, log=[])
    weights, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    resolve(module)
    assert (module.kept, module.log, capsys.readouterr().out) == (None, [], "")
    assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_no_tensor_of_a_run_has_memory() -> None:
    """The inputs of a layer of 8 TB of weights are found on this machine."""
    with torch.device("meta"):
        huge = nn.Linear(2**21, 2**20)
    assert spelled(resolve(huge, seqlens="1048576")) == "input=[seqlen,2097152]:f32"


def test_the_runs_are_bounded() -> None:
    """Three inputs of 38 possible widths would be 400,000 forms; the search gives up early."""
    calls = []

    def refusing(self: Any, a: Any, b: Any, c: Any) -> None:
        calls.append(a)
        raise ValueError("never")

    with pytest.raises(ModelError, match="ValueError: never"):
        resolve(net(refusing, layers=nn.ModuleList(nn.Linear(width, 8) for width in range(2, 40))))
    assert 0 < len(calls) <= MAX_FAKE_RUNS


def test_what_cannot_be_inferred_is_refused_with_the_spelling() -> None:
    """The error has the reason of the run that came furthest, what was tried, and `--input`."""

    def steps(self: Any, x: torch.Tensor, steps: int) -> torch.Tensor:
        return self.into(x) * steps

    def positions(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.into(x + self.positions[: x.shape[-2]])

    def looking_up(self: Any, ids: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no rows of {self.table(ids).shape}")

    for module, reasons in (
        (net(steps), ("forward needs steps, which is no tensor", '--input "x=[seqlen,...]:f32"')),
        (
            net(positions, positions=nn.Parameter(torch.zeros(32, 40))),
            ("x=[seqlen,40]:f32, seqlen=64: RuntimeError: ", "tried on fake tensors:"),
        ),
        (net(looking_up, table=nn.Embedding(99, 32)), ('--input "ids=[', ']:i64"')),
        (nn.ReLU(), ("no layer suggests a form", '--input "input=[seqlen,...]:f32"')),
    ):
        with pytest.raises(ModelError) as refused:
            resolve(module)
        assert [reason for reason in reasons if reason not in str(refused.value)] == []
