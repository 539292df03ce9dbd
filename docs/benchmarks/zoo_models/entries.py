"""The models of the zoo, in the order of their worth, and the buckets that each is served with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Entry:
    """One model with buckets that are built and raced together, on one machine.

    The buckets are few, so that a machine that is lent for some minutes gets through them: most ask
    for 10 to 20 GEMM rows, `swinv2` for 35. Several entries share a model that has more buckets.

    ``function`` is FILE:NAME in this folder. ``dims`` and ``inputs`` have the form of the command
    line's ``--dims`` and ``--input``.
    """

    name: str
    function: str
    dims: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def model(self) -> str:
        """What ``--model`` takes."""
        file, _, function = self.function.partition(":")
        return f"{HERE / file}:{function}"

    @property
    def words(self) -> list[str]:
        """The options that name the model, its buckets and its inputs."""
        dims = [word for dim in self.dims for word in ("--dims", dim)]
        inputs = [word for spec in self.inputs for word in ("--input", spec)]
        return ["--model", self.model, *dims, *inputs]


_IDS = ("ids=[batch,seqlen]:i64",)
_INPUT_IDS = ("input_ids=[batch,seqlen]:i64",)


def _pixels(size: int) -> tuple[str, ...]:
    return (f"x=[batch,3,{size},{size}]:bf16",)


def _noise(width: int) -> tuple[str, ...]:
    return (f"hidden_states=[batch,seqlen,{width}]:bf16", "time_step=[batch]:bf16")


def _by_name(*entries: Entry) -> Mapping[str, Entry]:
    return {entry.name: entry for entry in entries}


_SHORT, _LONG, _TOKENS = "batch=1;seqlen=16,512", "batch=1;seqlen=2048", "batch=32;seqlen=1"
_MEL = "input_features=[batch,128,3000]:bf16"
_HEARD = "heard=[batch,1500,1280]:bf16"

SERVED = _by_name(
    Entry("vit", "vision.py:vit", ("batch=8",), _pixels(518)),
    Entry("bert-large", "encoders.py:bert_large", ("batch=1,16;seqlen=384",), _INPUT_IDS),
    Entry("llama3-8b-tokens", "decoders.py:llama3", (_TOKENS,), _IDS),
    Entry("t5", "encoders.py:t5", ("batch=1,8;seqlen=512",), _INPUT_IDS),
    Entry("llama3-8b", "decoders.py:llama3", (_SHORT,), _IDS),
    Entry("qwen2-7b-tokens", "decoders.py:qwen2", (_TOKENS,), _IDS),
    Entry("qwen2-7b", "decoders.py:qwen2", (_SHORT,), _IDS),
    Entry("whisper-encoder", "speech.py:whisper_encoder", ("batch=1,8",), (_MEL,)),
    Entry("gpt2-medium", "decoders.py:gpt2_medium", ("batch=1;seqlen=512", _TOKENS), _IDS),
    Entry("modernbert", "encoders.py:modernbert", ("batch=1,16;seqlen=512",), _INPUT_IDS),
    Entry("dit", "diffusion.py:dit", ("batch=16;seqlen=1024",), _noise(1024)),
    Entry("dit-2", "diffusion.py:dit", ("batch=2;seqlen=1024",), _noise(1024)),
    Entry("llama3-8b-2048", "decoders.py:llama3", (_LONG,), _IDS),
    Entry("qwen2-7b-2048", "decoders.py:qwen2", (_LONG,), _IDS),
    Entry("gemma-2b", "decoders.py:gemma", ("batch=1;seqlen=512", _TOKENS), _IDS),
    Entry("convnext", "vision.py:convnext", ("batch=1,8",), _pixels(224)),
    Entry(
        "whisper-decoder", "speech.py:whisper_decoder", ("batch=1,8;seqlen=64",), (*_IDS, _HEARD)
    ),
    Entry("mixtral", "decoders.py:mixtral", ("batch=1;seqlen=512",), _IDS),
    Entry("swinv2", "vision.py:swinv2", ("batch=8",), _pixels(256)),
    Entry("vit-1", "vision.py:vit", ("batch=1",), _pixels(518)),
    Entry("swinv2-1", "vision.py:swinv2", ("batch=1",), _pixels(256)),
    # With a mask as servers give it: without it compiled attention is two matmuls in float32.
    Entry(
        "bert-large-mask",
        "encoders.py:bert_large",
        ("batch=16;seqlen=384",),
        (*_INPUT_IDS, "attention_mask=[batch,seqlen]:i64"),
    ),
    # One step of a decoder, for one request and for eight.
    Entry("llama3-8b-decode", "decoders.py:llama3", ("batch=1,8;seqlen=1",), _IDS),
    Entry("qwen2-7b-decode", "decoders.py:qwen2", ("batch=1,8;seqlen=1",), _IDS),
)

_FEW = ("batch=2;seqlen=16",)

# The same architectures with one layer or two of 16 to 64 channels, for tests on a CPU.
TINY = _by_name(
    Entry("qwen2", "decoders.py:tiny_qwen2", ("batch=1;seqlen=16", "batch=4;seqlen=1"), _IDS),
    Entry("bert", "encoders.py:tiny_bert", _FEW, _INPUT_IDS),
    Entry("gemma", "decoders.py:tiny_gemma", _FEW, _IDS),
    Entry("gpt2", "decoders.py:tiny_gpt2", _FEW, _IDS),
    Entry("mixtral", "decoders.py:tiny_mixtral", _FEW, _IDS),
    Entry("modernbert", "encoders.py:tiny_modernbert", _FEW, _INPUT_IDS),
    Entry("t5", "encoders.py:tiny_t5", _FEW, _INPUT_IDS),
    Entry(
        "whisper-encoder",
        "speech.py:tiny_whisper_encoder",
        ("batch=2",),
        ("input_features=[batch,16,32]:bf16",),
    ),
    Entry(
        "whisper-decoder",
        "speech.py:tiny_whisper_decoder",
        ("batch=2;seqlen=8",),
        (*_IDS, "heard=[batch,16,64]:bf16"),
    ),
    Entry("dit", "diffusion.py:tiny_dit", _FEW, _noise(64)),
    Entry("vit", "vision.py:tiny_vit", ("batch=2",), _pixels(56)),
    Entry("swinv2", "vision.py:tiny_swinv2", ("batch=2",), _pixels(32)),
    Entry("convnext", "vision.py:tiny_convnext", ("batch=2",), _pixels(32)),
)
