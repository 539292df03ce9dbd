"""The inputs that nobody named, found on fake tensors; nothing here is compiled."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmup.core.buckets import parse_buckets, parse_inputs
from warmup.core.errors import ModelError, SettingsError
from warmup.models.inputs import MAX_FAKE_RUNS, ResolvedInputs, resolve_inputs
from warmup.models.loading import LoadedModel, load_model, make_inputs

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


def test_the_inputs_of_a_posted_script_are_inferred_and_accepted() -> None:
    """A script as people post it gets inputs without a word, and its forward runs on them."""
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
        assert spelled(resolved) == expected, (script, expected)
        (bucket, *_) = parse_buckets("16", None)
        made = make_inputs(model, resolved.specs, bucket, torch.device("cpu"), None)
        with torch.no_grad():
            model.module(*made.args, **made.kwargs)


def test_an_example_takes_its_own_inputs_or_inferred_ones() -> None:
    """`example_inputs` is used where it fits the model of the file; else inputs are inferred."""
    for target, expected in (
        ("mlp.py", ""),
        ("mlp.py:MLP", ""),
        ("mlp.py:VisionLinear", "hidden_states=[seqlen,3420]:bf16"),
        ("unaligned.py:Gpt2Head", "x=[seqlen,768]:bf16"),
        ("vision_block.py:small", "hidden_states=[seqlen,128]:bf16"),
        ("llama_block.py:small", "hidden_states=[1,seqlen,128]:bf16"),
    ):
        assert spelled(resolve(load_model(str(EXAMPLES / target)))) == expected


def test_a_misspelled_dim_is_no_other_model() -> None:
    """The names that `example_inputs` takes are said, and nothing is inferred in its place."""
    text = r"--dims has no size for seqlen of example_inputs\(seqlen\)"
    with pytest.raises(SettingsError, match=text):
        resolve(load_model(str(EXAMPLES / "mlp.py:MLP")), seqlens=None, dims="length=16")
    other = load_model(str(EXAMPLES / "mlp.py:VisionLinear"))
    assert "[length,3420]" in spelled(resolve(other, seqlens=None, dims="length=16"))


class _Opaque(nn.Module):
    """Fails on fake tensors, as an operation does that torch knows no shapes of."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy()) + self.into(x)


def test_example_inputs_stay_where_no_other_inputs_are_accepted() -> None:
    """In a file with several classes they give way to inferred inputs, and to nothing else."""

    def example_inputs(seqlen: int) -> torch.Tensor:
        return torch.randn(seqlen, 40)

    assert resolve(LoadedModel(_Opaque(), example_inputs, "net", has_siblings=True)).specs == ()


def test_tokens_have_both_dims_and_ids_of_the_embedding() -> None:
    """A batch and a length are both dims of the ids, the batch first; ids stay below its rows."""
    model = load_model(str(SCRIPTS / "token_model.py"))
    resolved = resolve(model, seqlens="16,64", dims="batch=1,8")
    assert spelled(resolved) == "idx=[batch,seqlen]:i64"
    assert [spec.below for spec in resolved.specs] == [65]


def test_a_named_input_and_a_cast_stay() -> None:
    """The other input is inferred beside a named one; with --dtype bf16 inputs are bf16 too."""
    resolved = resolve(
        load_model(str(SCRIPTS / "two_towers.py")), "image_features=[1,seqlen,96]:f32"
    )
    assert spelled(resolved) == ("image_features=[1,seqlen,96]:f32 text_features=[1,seqlen,80]:f32")
    assert [bool(spec.inferred_from) for spec in resolved.specs] == [False, True]
    model = load_model(str(SCRIPTS / "linear_script.py"))
    assert spelled(resolve(model, dtype=torch.bfloat16)) == "x=[seqlen,96]:bf16"


class _Batched(nn.Module):
    """Unpacks three sizes, so a sized dim cannot stand first."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.into = nn.Linear(24, 8), nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        return self.out(self.into(x.reshape(batch * length, width)))


class _Masked(nn.Module):
    """Takes a mask beside its features."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(40, 24)

    def forward(self, x: torch.Tensor, key_mask: torch.Tensor) -> torch.Tensor:
        return self.into(x).masked_fill(~key_mask[..., None], 0.0)


class _Reading(nn.Module):
    """Branches on a value of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.into(x) if x.max() > 0 and bool((x < 9).all()) else x


class _Signal(nn.Module):
    """A convolution along the sized dim."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class _Optional(nn.Module):
    """As models of libraries are: every argument has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)

    def forward(
        self, input_ids: torch.Tensor | None = None, embeddings: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        if input_ids is None:
            raise ValueError("give input_ids")
        return {"hidden": self.table(input_ids)}


def test_forward_decides_the_form() -> None:
    """The form is the first that forward accepts: ranks, masks, values read, signals, defaults."""
    for module, expected in (
        (_Batched(), "x=[1,seqlen,40]:f32"),
        (_Masked(), "x=[seqlen,40]:f32 key_mask=[seqlen]:bool"),
        (_Reading(), "x=[seqlen,40]:f32"),
        (_Signal(), "x=[1,6,seqlen]:f32"),
        (_Optional(), "input_ids=[1,seqlen]:i64"),
        (nn.LSTM(24, 16), "input=[seqlen,24]:f32"),
    ):
        assert spelled(resolve(module)) == expected


def test_images_of_any_size_are_said_to_be_assumed() -> None:
    """A convnet that pools takes images of every size; the line says that 224 is an assumption."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    (assumption,) = resolve(net).assumptions
    assert assumption.text == (
        "inputs: input=[seqlen,3,224,224]:f32, taken from forward and the weights "
        "(which take images of any size)"
    )


def test_an_image_encoder_of_one_size_gets_that_size() -> None:
    """A vision transformer of timm takes one size of image only, such as 518 for DINOv2."""
    for side in (336, 518):
        patches = nn.Conv2d(3, 8, 14, stride=14)
        net = nn.Sequential(patches, nn.Flatten(2), nn.Linear((side // 14) ** 2, 4))
        assert spelled(resolve(net)) == f"input=[seqlen,3,{side},{side}]:f32"


class _Keeping(nn.Module):
    """Stores what it computed, as caches do, and prints."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(40, 24)
        self.kept: Any = None
        self.log: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = self.into(x)
        self.log.append(self.kept)
        print("forward")  # noqa: T201
        return self.kept


def test_the_model_and_the_random_state_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """No attribute of the model changes, nothing is printed, and no random number is drawn."""
    module = _Keeping()
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


class _Refusing(nn.Module):
    """Refuses every input, after counting it."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 8) for width in range(2, 40))

    def forward(self, a: Any, b: Any, c: Any) -> None:
        _Refusing.calls += 1
        raise ValueError("never")


def test_the_runs_are_bounded() -> None:
    """Three inputs of 38 possible widths would be 400,000 forms; the search gives up early."""
    with pytest.raises(ModelError, match="ValueError: never"):
        resolve(_Refusing())
    assert 0 < _Refusing.calls <= MAX_FAKE_RUNS


class _Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(40, 24)

    def forward(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        return self.into(x) * steps


class _Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(32, 40))
        self.into = nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.into(x + self.positions[: x.shape[-2]])


def test_what_cannot_be_inferred_is_refused_with_the_spelling() -> None:
    """The error has the reason of the run that came furthest, what was tried, and `--input`."""
    for case, (module, reasons) in {
        "an integer": (
            _Steps(),
            ["forward needs steps, which is no tensor", '--input "x=[seqlen,...]:f32"'],
        ),
        "too few positions": (
            _Positions(),
            ["x=[seqlen,40]:f32, seqlen=64: RuntimeError: ", "tried on fake tensors:"],
        ),
        "no weights": (nn.ReLU(), ["no layer suggests a form", '--input "input=[seqlen,...]:f32"']),
    }.items():
        with pytest.raises(ModelError) as refused:
            resolve(module)
        assert [reason for reason in reasons if reason not in str(refused.value)] == [], case


class _Experts(nn.Module):
    """Two experts, half of the rows each, as a mixture of experts computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 32)
        self.experts = nn.Parameter(torch.randn(2, 32, 64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids).flatten(0, 1)
        ends = torch.tensor([len(rows) // 2, len(rows)], dtype=torch.int32)
        return torch._grouped_mm(rows, self.experts, offs=ends)


def test_products_of_groups_may_be_in_float32() -> None:
    """On fake tensors torch computes them in bfloat16 alone."""
    assert spelled(resolve(_Experts())) == "ids=[1,seqlen]:i64"


class _LookingUp(nn.Module):
    """A model that looks its input up, and then fails whatever it was."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no rows of {self.embedding(ids).shape}")


def test_the_advice_has_the_form_that_came_furthest() -> None:
    """Ids that were looked up are named as ids."""
    with pytest.raises(ModelError, match=r'name them, such as --input "ids=\[.*seqlen.*\]:i64"'):
        resolve(_LookingUp())


def test_assumed_inputs_are_said_where_nobody_names_any() -> None:
    """With an input that is named, what the model's own function would make is not used."""
    for named in (True, False):
        model = LoadedModel(
            nn.Linear(96, 8).eval(),
            lambda seqlen: (torch.randn(seqlen, 96),),
            "net",
            assumed=("model: net", "name another"),
            inputs_assumed=("inputs: x=[seqlen,96]", "name others"),
        )
        given = ["input=[1,seqlen,96]:f32"] if named else []
        said = [str(each) for each in resolve(model, *given).assumptions]
        of_inputs = [] if named else ["inputs: x=[seqlen,96]; name others"]
        assert said == ["model: net; name another", *of_inputs], named
