"""Models of transformers by `--model hf:`, on CPU with tiny configs and random weights.

The how-to page is followed to the letter, in processes of their own. .ci/nightly runs these tests
in its step of servers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from own_processes import codes_of

from warmup.core.buckets import Bucket, parse_inputs
from warmup.core.errors import ModelError, SettingsError
from warmup.models.loading import load_model, make_inputs
from warmup.models.model_target import LoadedModel
from warmup.serving.audit import audit

torch = pytest.importorskip("torch")

# transformers is in the extra test too: the other extra keeps these minutes out of the first step.
pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("uvicorn") is None,
    reason="the extra servers is not installed",
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "serve-a-hugging-face-model.md").read_text(encoding="utf-8")
LIMIT_S = 300  # only ends a test that hangs
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 99}
SMALL = {**TEXT, "num_attention_heads": 2}
T5 = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 2,
    "vocab_size": 99,
    "decoder_start_token_id": 0,
}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
SOUND = {"max_source_positions": 10, "num_mel_bins": 8}
WHISPER = {**HEADS, **LAYERS, **TOKENS, **SOUND, "d_model": 32, "vocab_size": 99}
VIT = {**SMALL, "image_size": 16, "patch_size": 8}
CLIP = {
    "text_config": {**SMALL, "eos_token_id": 98, "bos_token_id": 1},
    "vision_config": VIT,
    "projection_dim": 16,
}
# Model type, class, fields, sizes, and the shape of each input.
FORWARDS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, int], Mapping[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        {**SMALL, "num_key_value_heads": 2},
        {"seqlen": 8, "batch": 2},
        {"input_ids": [2, 8], "attention_mask": [2, 8]},
    ),
    "bert": ("BertModel", SMALL, {"seqlen": 8}, {"input_ids": [1, 8], "attention_mask": [1, 8]}),
    "vit": ("ViTModel", VIT, {"batch": 2}, {"pixel_values": [2, 3, 16, 16]}),
    "timesformer": (
        "TimesformerModel",
        {**VIT, "num_frames": 3},
        {"batch": 2},
        {"pixel_values": [2, 3, 3, 16, 16]},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        T5,
        {"seqlen": 8, "decoder_seqlen": 3},
        {"input_ids": [1, 8], "attention_mask": [1, 8], "decoder_input_ids": [1, 3]},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        WHISPER,
        {"batch": 1, "decoder_seqlen": 2},
        {"input_features": [1, 8, 20], "decoder_input_ids": [1, 2]},
    ),
    "clip": (
        "CLIPModel",
        CLIP,
        {"seqlen": 8},
        {"input_ids": [1, 8], "pixel_values": [1, 3, 16, 16], "attention_mask": [1, 8]},
    ),
}


def config(folder: Path, kind: str, **fields: Any) -> Path:
    """Write a config of the model type *kind* to *folder*; return its path."""
    path = folder / f"{kind}.json"
    path.write_text(json.dumps({"model_type": kind, **fields}))
    return path


@pytest.fixture(scope="module")
def folder(variables: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page, and the table that its command built there."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "tiny").mkdir()
    for language, name in (("json", "tiny/config.json"), ("python", "serve.py")):
        (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        (folder / name).write_text(text)
    done = subprocess.run(
        words := said("warmup build"),
        env=environment(folder, variables),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes_of(words), done.stderr[-3000:]
    return folder


def said(start: str) -> list[str]:
    """Return the words of the page's command that begins with *start*."""
    (line,) = re.findall(rf"^    \$ ({start}.*)$", PAGE, re.MULTILINE)
    words = {"warmup": [sys.executable, "-m", "warmup"], "python": [sys.executable], "8000": ["0"]}
    return [part for word in shlex.split(line) for part in words.get(word, [word])]


def environment(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **variables, **caches}


def test_the_server_of_the_page_answers_from_its_table(
    folder: Path, variables: Mapping[str, str]
) -> None:
    """A prompt of three tokens is continued to max_length, and SIGTERM ends the server.

    Prefill and decode of generate() with a static cache: every decision is a hit, and no row of
    the two sets of buckets is unused.
    """
    with subprocess.Popen(
        said("warmup run"),
        env={**environment(folder, variables), "TORCHINDUCTOR_CACHE_DIR": str(folder / "served")},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving on port"), process.communicate()[1][-3000:]
            url = f"http://127.0.0.1:{int(line.split()[-1])}"
            with urllib.request.urlopen(url, b"[5, 6, 7]", timeout=LIMIT_S) as answer:
                assert len(json.load(answer)) == 48
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    audited = audit([folder / "audit.jsonl"], table=folder / "tiny.json")
    assert (audited.miss_count, audited.uncovered, audited.silent) == (0, {}, ())
    assert audited.hits
    assert audited.unused == ()


def test_weights_come_from_safetensors_and_arguments_are_fields_of_the_config(
    tmp_path: Path,
) -> None:
    path = config(tmp_path, "bert", architectures=["BertModel"], **SMALL)
    saved = load_model(f"hf-random:{path}")
    saved.module.save_pretrained(tmp_path / "saved")
    loaded = load_model(f"hf:{tmp_path / 'saved'}")
    weight = "encoder.layer.0.output.dense.weight"
    assert bool((loaded.module.state_dict()[weight] == saved.module.state_dict()[weight]).all())
    deep = load_model(f'hf-random:{path}{{"num_hidden_layers": 3}}')
    assert len(deep.module.encoder.layer) == 3
    with pytest.raises(ModelError, match="BertConfig has no field layers"):
        load_model(f'hf-random:{path}{{"layers": 3}}')


def load(folder: Path, kind: str) -> LoadedModel:
    name, fields, *_ = FORWARDS[kind]
    loaded = load_model(f"hf-random:{config(folder, kind, architectures=[name], **fields)}")
    assert loaded.example_inputs is not None
    return loaded


def test_inputs_follow_from_forward_and_config(tmp_path: Path) -> None:
    """A plain call of forward: the inputs have these shapes; in eval mode the model takes them.

    A dim of another name is an error that lists those there are; seqlen is a decoder's too.
    """
    for kind, (_, _, sizes, shapes) in FORWARDS.items():
        loaded = load(tmp_path, kind)
        inputs = loaded.example_inputs(**sizes)
        assert {name: list(each.shape) for name, each in inputs.items()} == shapes, kind
        assert not any(each.training for each in loaded.module.modules()), kind
        loaded.module(**inputs)
    dims = {"vit": "batch, side", "whisper": "batch, seqlen, decoder_seqlen, max_length"}
    for kind, names in dims.items():
        with pytest.raises(SettingsError, match=f"its dims are {names}$"):
            load(tmp_path, kind).example_inputs(rows=3)


def test_a_model_with_an_encoder_has_a_decode_step(tmp_path: Path) -> None:
    """The step's logits are for one token, and the same in every call of the same inputs."""
    for kind in ("t5", "whisper"):
        loaded, sizes = load(tmp_path, kind), FORWARDS[kind][2]
        own = {name: size for name, size in sizes.items() if "dec" not in name}
        inputs = loaded.example_inputs(max_length=16, **own)
        first, second = (loaded.module(**inputs) for _ in range(2))
        assert first.shape == (1, 1, 99), kind
        assert bool((first == second).all()), kind


def _pickled(folder: Path) -> str:
    config(folder, "config", model_type="bert", architectures=["BertModel"], **SMALL)
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    return f"hf:{folder}"


def _own_code(folder: Path) -> str:
    (folder / "modeling.py").write_text("raise SystemExit('the code was run')")
    auto = {"AutoModel": "modeling.Net"}
    return f"hf-random:{config(folder, 'mine', auto_map=auto)}"


REFUSED: Mapping[str, tuple[Callable[[Path], str], str]] = {
    "not there": (lambda _: "hf:org/name", "models are not downloaded"),
    "pickles": (_pickled, "other formats are code, and are not loaded"),
    "code of its own": (_own_code, "its code is in the model's folder, and is not run"),
    "a config without random weights": (
        lambda folder: f"hf:{config(folder, 'bert', architectures=['BertModel'])}",
        "a config file has no weights",
    ),
    "no class": (lambda folder: f"hf-random:{config(folder, 'bert')}", "names no architectures"),
    "a class to name": (lambda folder: f"hf-random:{config(folder, 'bert')}", "bert.json:CLASS"),
    "a class that is none": (
        lambda folder: f"hf-random:{config(folder, 'bert')}:BertTokenizer",
        "has no model class 'BertTokenizer'",
    ),
}


def test_what_cannot_be_loaded_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each refusal says in a line what is wrong; no code of the folder runs."""
    for case, (make, words) in REFUSED.items():
        with pytest.raises(ModelError, match=re.escape(words)) as refused:
            load_model(make(tmp_path_factory.mktemp("refused")))
        assert "\n" not in str(refused.value), case


def test_a_class_that_transformers_cannot_import_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken package beside transformers, such as a torchvision of another torch, is no fault."""
    import transformers

    target = f"hf-random:{config(tmp_path, 'bert', architectures=['BrokenModel'])}"

    found = type(transformers).__getattr__

    def find(module: Any, name: str) -> Any:
        if name == "BrokenModel":
            raise ModuleNotFoundError(name) from RuntimeError("no operator nms")
        return found(module, name)

    monkeypatch.setattr(type(transformers), "__getattr__", find)
    with pytest.raises(ModelError, match=r"transformers failed .*no operator nms"):
        load_model(target)


def test_a_model_with_an_unknown_main_argument_takes_named_inputs(tmp_path: Path) -> None:
    """A forecaster's series cannot be made from its config; it loads, and takes an --input."""
    fields = {"num_input_channels": 3, "context_length": 64, "d_model": 32, "ffn_dim": 64}
    path = config(tmp_path, "patchtst", architectures=["PatchTSTForPrediction"], **fields)
    loaded, bucket = load_model(f"hf-random:{path}"), Bucket((("batch", 2),))
    with pytest.raises(ModelError, match="past_values, the model's main argument, is none of"):
        make_inputs(loaded, (), bucket, torch.device("cpu"), None)
    named = parse_inputs(["past_values=[batch,64,3]"])
    made = make_inputs(loaded, named, bucket, torch.device("cpu"), None)
    assert made.kwargs["past_values"].shape == (2, 64, 3)


def test_images_whose_config_has_no_size_take_one_from_the_dims(tmp_path: Path) -> None:
    """SegFormer's config has no image_size: the dim to bind is named, and is the images' side."""
    fields = {"hidden_sizes": [16, 16, 16, 16], "depths": [1, 1, 1, 1]}
    path = config(tmp_path, "segformer", architectures=["SegformerModel"], **fields)
    loaded = load_model(f"hf-random:{path}")
    assert loaded.example_inputs is not None
    with pytest.raises(SettingsError, match=r"names no square image_size .*--dims side=224"):
        loaded.example_inputs(batch=1)
    made = loaded.example_inputs(batch=1, side=64)
    assert {tuple(each.shape) for each in made.values()} == {(1, 3, 64, 64)}


def test_inputs_that_forward_refuses_are_named(tmp_path: Path) -> None:
    """The dims that would suit it are named, and no wrong dtype."""
    fields = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    cases: tuple[tuple[str, str, dict[str, int], str], ...] = (
        (  # sixteen samples of sound are too few for seven convolutions
            "wav2vec2",
            "Wav2Vec2Model",
            {"batch": 1, "seqlen": 16},
            r'input_values of 1 x 16: .*give sizes that it takes.*--input "input_values=\[.*\]"; ',
        ),
        (  # images of another size than the config's
            "vit",
            "ViTModel",
            {"batch": 1, "side": 20},
            r'such as --input "pixel_values=\[batch,3,side,side\]"; forward takes pixel_values, ',
        ),
    )
    for kind, name, sizes, words in cases:
        loaded = load_model(f"hf-random:{config(tmp_path, kind, architectures=[name], **fields)}")
        assert loaded.example_inputs is not None
        with pytest.raises(ModelError, match=words):
            loaded.example_inputs(**sizes)
