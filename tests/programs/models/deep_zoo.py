"""The zoo's tiny language models, with four layers each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

_BENCHMARKS = Path(__file__).resolve().parents[3] / "docs" / "benchmarks"
sys.path.insert(0, str(_BENCHMARKS / "zoo_models"))
sys.path.insert(0, str(_BENCHMARKS))

from zoo_models import decoders, encoders, speech  # noqa: E402  found on the path above

_LAYERS = 4


def _deep(tiny: Callable[[], nn.Module], make: Callable[[Any], nn.Module]) -> nn.Module:
    """Return what *make* makes of the configuration of *tiny*, with more layers."""
    config: Any = next(each.config for each in tiny().modules() if hasattr(each, "config"))
    values = config.to_dict()
    names = [name for name in ("num_layers", "n_layer", "encoder_layers") if name in values]
    values |= {"layer_types": None, (names or ["num_hidden_layers"])[0]: _LAYERS}
    return make(type(config)(**values))


def bert() -> nn.Module:
    return _deep(encoders.tiny_bert, encoders._encoder)


def gpt2() -> nn.Module:
    return _deep(decoders.tiny_gpt2, decoders._decoder)


def mixtral() -> nn.Module:
    return _deep(decoders.tiny_mixtral, decoders._decoder)


def qwen2() -> nn.Module:
    return _deep(decoders.tiny_qwen2, decoders._decoder)


def t5() -> nn.Module:
    return _deep(encoders.tiny_t5, encoders._t5_encoder)


def whisper_encoder() -> nn.Module:
    return _deep(speech.tiny_whisper_encoder, speech._encoder)
