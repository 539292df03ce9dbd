"""`load_pretrained`: a model of the transformers library, from a local folder or config file.

No code of the folder runs, and nothing is downloaded: the class is of the installed library, the
config is read from a file, and weights come from safetensors alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.core.error_text import first_line
from warmup.core.errors import ModelError
from warmup.core.method import SEED
from warmup.models.forward_inputs import ForwardInputs
from warmup.models.generation_step import GenerationStep
from warmup.models.model_target import PRETRAINED, ModelTarget

_CONFIG_FILE: Final = "config.json"
_MOST_SAID: Final = 400  # letters of an error of transformers, whose reason is its last line
_FLOAT_TAG: Final = "__float__"  # of {"__float__": "Infinity"}
_WEIGHTS_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = ("model.safetensors", _WEIGHTS_INDEX)


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """A model in eval mode, the function that makes its inputs, a name, and what was assumed.

    ``assumed`` is what was taken because nobody named it, and how to name something else;
    ``inputs_assumed`` the same of the inputs, for where nobody names any, and None where they have
    to be named.
    """

    module: nn.Module
    example_inputs: Callable[..., Mapping[str, Any]]
    name: str
    assumed: tuple[str, str]
    inputs_assumed: tuple[str, str] | None


def load_pretrained(target: ModelTarget) -> PretrainedModel:
    """Return the model of *target*: ``FOLDER``, ``CONFIG.json``, each also with ``:CLASS``.

    CLASS is a model class of transformers; without it, it is the first of the config's
    ``architectures``. The arguments of *target* replace fields of the config. Random weights are
    the same in each process.

    Raises:
        ModelError: transformers is missing, there is no such folder, file, class or field, the
            model needs code of its own, or the weights are absent, incomplete or no safetensors.
    """
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"--model {target}: transformers is not installed ({first_line(error)})",
            'pip install "inductor-warmup[transformers]"',
        ) from error
    file, name = _find(target)
    config = _config(transformers, file, target)
    definition = _class(transformers, config, name, target)
    with _seeded(), _errors_of(target):
        if target.is_random:
            model = definition._from_config(config)  # noqa: SLF001  as the library's Auto classes do
        else:
            model = _with_weights(definition, config, file, target)
    chosen = definition.__name__
    origin = "as named" if name else f"the first of architectures in {file.name}"
    weights = "random weights" if target.is_random else "weights from safetensors"
    inputs = ForwardInputs(model)
    module = GenerationStep(model) if model.can_generate() else model
    return PretrainedModel(
        module.eval(),
        inputs,
        ".".join([_label(file), *([name] if name else [])]),
        (
            f"model: {chosen}, {origin}, {weights}; no code of the folder is run",
            f"--model {PRETRAINED}PATH:CLASS names another class",
        ),
        (f"inputs: {inputs}, from forward and the config", '--input "NAME=[...]" names others')
        if inputs.are_known
        else None,
    )


def _find(target: ModelTarget) -> tuple[Path, str]:
    """Return the config file of *target*, and the name of the class, empty without one.

    Raises:
        ModelError: there is no such folder or file.
    """
    place, colon, name = target.place.rpartition(":")
    if not colon or not name.isidentifier():
        place, name = target.place, ""
    path = Path(place).expanduser()
    if not path.exists():
        raise ModelError(
            f"--model {target}: there is no folder or file {place}; models are not downloaded",
            f"download it first (hf download {place} --local-dir DIR), then --model hf:DIR",
        )
    file = path / _CONFIG_FILE if path.is_dir() else path
    if not file.is_file():
        raise ModelError(
            f"--model {target}: the folder has no {_CONFIG_FILE}",
            "name the folder that save_pretrained() or hf download wrote",
        )
    if not path.is_dir() and not target.is_random:
        raise ModelError(
            f"--model {target}: a config file has no weights",
            "name its folder, or give --random-weights",
        )
    return file.absolute(), name


def _label(file: Path) -> str:
    return file.parent.name if file.name == _CONFIG_FILE else file.stem


def _config(transformers: Any, file: Path, target: ModelTarget) -> Any:
    """Return the config in *file* with the arguments of *target*; a ModelError for a wrong one."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"), object_hook=_special_float)
        kind = fields.pop("model_type", None) if isinstance(fields, dict) else None
    except (OSError, ValueError) as error:
        raise ModelError(f"--model {target}: {file.name} cannot be read ({error})") from error
    if kind not in transformers.CONFIG_MAPPING:
        own = isinstance(fields, dict) and "auto_map" in fields
        why = "; its code is in the model's folder, and is not run" if own else ""
        raise ModelError(
            f"--model {target}: transformers {transformers.__version__} has no model type "
            f"{kind!r}{why}",
            "write a file with a function that makes the model, and give --model FILE.py"
            if own
            else "name a config with a model_type that it has",
        )
    with _errors_of(target):
        known = transformers.AutoConfig.for_model(kind)
        if unknown := [each for each in target.arguments if not hasattr(known, each)]:
            raise ModelError(
                f"--model-args: {type(known).__name__} has no field {', '.join(unknown)}",
                "name fields of the config",
            )
        return transformers.AutoConfig.for_model(kind, **{**fields, **target.arguments})


def _special_float(fields: dict[str, Any]) -> Any:
    """Return the number that transformers 5 writes as an object, since JSON has none like it."""
    return float(fields[_FLOAT_TAG]) if fields.keys() == {_FLOAT_TAG} else fields


def _class(transformers: Any, config: Any, name: str, target: ModelTarget) -> Any:
    """Return the class *name*, or that of the first architecture; a ModelError without it here."""
    wanted = name or next(iter(getattr(config, "architectures", None) or ()), "")
    if not wanted:
        raise ModelError(
            f"--model {target}: the config names no architectures",
            f"name the class: --model {replace(target, place=f'{target.place}:CLASS')}",
        )
    try:
        definition = getattr(transformers, wanted, None)
    except ImportError as error:  # where a package beside it is broken, such as torchvision
        raise ModelError(
            f"--model {target}: transformers {transformers.__version__} cannot import {wanted!r} "
            f"({first_line(error.__cause__ or error)})",
            f"mend what `from transformers import {wanted}` says",
        ) from error
    is_model = isinstance(definition, type) and issubclass(definition, nn.Module)
    if not is_model or not hasattr(definition, "_from_config"):
        raise ModelError(
            f"--model {target}: transformers {transformers.__version__} has no model class "
            f"{wanted!r}",
            "name a class that can be made of this config, such as LlamaForCausalLM",
        )
    return definition


def _with_weights(definition: Any, config: Any, file: Path, target: ModelTarget) -> nn.Module:
    """Return a model with the weights that lie beside *file*, in their own dtype.

    Raises:
        ModelError: there are no safetensors, or they lack weights of the model.
    """
    if not any((file.parent / name).is_file() for name in _WEIGHTS):
        raise ModelError(
            f"--model {target}: no {' or '.join(_WEIGHTS)} in the folder; other formats are code, "
            "and are not loaded",
            "save it with save_pretrained(), or give --random-weights",
        )
    model: nn.Module
    model, loading = definition.from_pretrained(
        file.parent,
        config=config,
        dtype="auto",
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    absent = sorted({*loading["missing_keys"], *map(str, loading["mismatched_keys"])})
    if absent:
        raise ModelError(
            f"--model {target}: the weights lack {len(absent)} of {definition.__name__} "
            f"({absent[0]}{', ...' if absent[1:] else ''})",
            "name the class that was saved, or give --random-weights",
        )
    return model


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Draw from a fixed seed, and leave torch's generator of the CPU as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


@contextlib.contextmanager
def _errors_of(target: ModelTarget) -> Iterator[None]:
    """Turn what transformers raises into a `ModelError` about *target*."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the library raises whatever its parts raise
        said = " ".join(str(error).split())[:_MOST_SAID]
        raise ModelError(
            f"--model {target}: transformers failed ({type(error).__name__}: {said})"
        ) from error
