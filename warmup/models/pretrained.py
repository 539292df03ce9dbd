"""`load_pretrained`: a model of the transformers library, from a local folder or config file.

No code of the folder runs, and nothing is downloaded: the class is of the installed library, the
config is read from a file, and weights come from safetensors alone.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.core.errors import ModelError, SettingsError
from warmup.core.rows import SEED
from warmup.core.text import first_line
from warmup.models.fake_model import RejectedCallError, fake_copy
from warmup.models.model_target import PRETRAINED, Assumption, Dims, LoadedModel, ModelTarget


class _StepReachedError(Exception):
    """Ends a generate() whose call of the model was recorded."""


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    """The arguments of a recorded call, and what its cache, the argument *name*, held before."""

    kwargs: Mapping[str, Any]
    name: str
    cache: Any
    held: tuple[tuple[Any, Mapping[str, Any]], ...]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments, with the cache as it was, where the graph has its addresses."""
        if not self.held:
            return {**self.kwargs, self.name: copy.deepcopy(self.cache)}
        for layer, values in self.held:
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    getattr(layer, name).copy_(value)
                else:
                    setattr(layer, name, value)
        return {**self.kwargs, self.name: self.cache}


class GenerationStep(nn.Module):
    """``model``, which has generate(). Without ``max_length`` forward is the model's own.

    With ``max_length`` forward is a step of ``generate(cache_implementation="static")`` for a cache
    of so many tokens: the first one, on a prompt, or the second one, on a new token, where
    ``input_ids`` is a single token or the model has an encoder. generate() makes the step's
    arguments outside of the compiled graph, which is that of ``model`` alone. The output is the
    logits, and every call starts with the same cache.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._steps: dict[tuple[object, ...], _RecordedStep] = {}

    def forward(self, *args: Any, max_length: int | None = None, **inputs: Any) -> Any:
        if max_length is None:
            return self.model(*args, **inputs)
        return self.model(**self._arguments(inputs, max_length)).logits

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's own has no types
    def _arguments(self, inputs: Mapping[str, torch.Tensor], max_length: int) -> dict[str, Any]:
        main = next(iter(inputs.values()))
        count = sum(1 for _ in self.model.modules())  # a build leaves out repeated layers
        key = (max_length, tuple(main.shape), main.device, self.model.dtype, count)
        if key not in self._steps:
            self._steps[key] = self._record(inputs, max_length)
        arguments = self._steps[key].arguments()
        if "input_ids" in inputs and "input_ids" in arguments:
            arguments["input_ids"] = inputs["input_ids"].clone()  # not the token of a near tie
        return arguments

    def _record(self, inputs: Mapping[str, torch.Tensor], max_length: int) -> _RecordedStep:
        model, own = self.model, self.model.forward
        has_encoder = model.config.is_encoder_decoder
        single = "input_ids" in inputs and inputs["input_ids"].shape[1] == 1
        wanted = 2 if has_encoder or single else 1
        recorded: list[dict[str, Any]] = []

        def record(*args: Any, **kwargs: Any) -> Any:
            recorded.append(kwargs)
            if len(recorded) == wanted:
                raise _StepReachedError
            return own(*args, **kwargs)

        before = getattr(model, "_previous_max_cache_length", -1)
        model._previous_max_cache_length = -1  # noqa: SLF001  else a longer cache of another bucket
        with _replaced_forward(model, record):
            try:
                model.generate(
                    **inputs,
                    cache_implementation="static",
                    max_length=max_length + 1 if has_encoder else max_length,
                    min_new_tokens=2,
                    do_sample=False,
                    disable_compile=True,
                )
            except _StepReachedError:
                pass
            finally:
                model._previous_max_cache_length = before  # noqa: SLF001  as above
        kwargs = dict(recorded[-1]) if len(recorded) == wanted else {}
        from transformers import Cache

        name = next((name for name, value in kwargs.items() if isinstance(value, Cache)), None)
        if name is None:
            raise ModelError(
                f"generate() of {type(model).__name__} makes no step with a static cache",
                "leave out max_length, and build its forward",
            )
        cache = kwargs.pop(name)
        held = tuple(
            (layer, {name: _copied(value) for name, value in vars(layer).items()})
            for layer in _layers(cache)
        )
        return _RecordedStep(kwargs, name, cache, held if wanted > 1 else ())


@contextlib.contextmanager
def _replaced_forward(model: Any, function: Callable[..., Any]) -> Iterator[None]:
    before = vars(model).get("forward")
    vars(model)["forward"] = functools.wraps(model.forward)(function)
    try:
        yield
    finally:
        del vars(model)["forward"]
        vars(model).update({} if before is None else {"forward": before})


def _layers(cache: Any) -> Iterator[Any]:
    for name in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(cache, name):
            yield from _layers(getattr(cache, name))
    yield from getattr(cache, "layers", ())
    if hasattr(cache, "is_updated"):
        yield cache


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return dict(value) if isinstance(value, dict) else value


MAX_LENGTH: Final = "max_length"  # as generate() calls the tokens that a static cache is for
_BATCH_DIM: Final = "batch"
_SEQLEN_DIM: Final = "seqlen"
_DECODER_DIM: Final = "decoder_seqlen"
_SIDE_DIM: Final = "side"
_INPUT_DIMS: Final = (_BATCH_DIM, _SEQLEN_DIM, _DECODER_DIM, _SIDE_DIM, MAX_LENGTH)


class ForwardInputs:
    """Makes the inputs of *model* for the sizes of a bucket; ``str()`` names them with their dims.

    Masks are all ones. With the dim ``max_length`` the inputs are those of a step of generate().
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config = model.config
        self._text = model.config.get_text_config()
        self._parameters = inspect.signature(model.forward).parameters
        self._is_checked = False

    @property
    def are_known(self) -> bool:
        return self._known_dims(self._model.main_input_name) is not None

    def __str__(self) -> str:
        return " ".join(f"{name}=[{','.join(map(str, dims))}]" for name, dims in self._dims())

    def __call__(self, **sizes: int) -> Mapping[str, Any]:
        if unknown := [name for name in sizes if name not in _INPUT_DIMS]:
            raise SettingsError(
                f"no input of {type(self._model).__name__} has the dim {', '.join(unknown)}",
                f"its dims are {', '.join(self._used())}",
            )
        steps = MAX_LENGTH in sizes
        if steps and not self._model.can_generate():
            raise SettingsError(
                f"{type(self._model).__name__} has no generate(), which max_length is for",
                "leave out max_length",
            )
        made = {name: self._tensor(name, dims, sizes) for name, dims in self._dims()}
        if steps:
            prompt = 0 if self._config.is_encoder_decoder else sizes.get(_SEQLEN_DIM, 0)
            if sizes[MAX_LENGTH] <= prompt:
                raise SettingsError(
                    f"max_length={sizes[MAX_LENGTH]} has no room behind seqlen={prompt}",
                    "max_length counts the prompt and the new tokens: give more",
                )
            made.pop("decoder_input_ids", None)
            return {**made, MAX_LENGTH: sizes[MAX_LENGTH]}
        self._check(made)
        return made

    def _used(self) -> list[str]:
        used: set[str | int] = {dim for _, dims in self._dims() for dim in dims}
        if _DECODER_DIM in used:
            used.add(_SEQLEN_DIM)  # the decoder's length where it has none of its own
        if self._model.can_generate():
            used.add(MAX_LENGTH)
        return [dim for dim in _INPUT_DIMS if dim in used]

    def _dims(self) -> list[tuple[str, Dims]]:
        main = self._model.main_input_name
        dims = {main: self._dims_of(main)}
        is_pair = {"input_ids", "pixel_values"} <= {*self._parameters}
        if is_pair and not hasattr(self._config, "image_token_id"):
            dims |= {name: self._dims_of(name) for name in ("input_ids", "pixel_values")}
        if "attention_mask" in self._parameters and "input_ids" in dims:
            dims["attention_mask"] = (_BATCH_DIM, _SEQLEN_DIM)
        if self._config.is_encoder_decoder and "decoder_input_ids" in self._parameters:
            dims["decoder_input_ids"] = (_BATCH_DIM, _DECODER_DIM)
        return [*dims.items()]

    def _dims_of(self, name: str) -> Dims:
        dims = self._known_dims(name)
        if dims is None:
            raise self._refusal(f"{name}, the model's main argument, is none of those known", name)
        return dims

    def _known_dims(self, name: str) -> Dims | None:
        config = self._config
        if name == "input_ids":
            return _BATCH_DIM, _SEQLEN_DIM
        if name == "pixel_values":
            frames = [config.num_frames] if hasattr(config, "num_frames") else []  # of a video
            channels = int(getattr(self._images(), "num_channels", 3))
            return _BATCH_DIM, *frames, channels, _SIDE_DIM, _SIDE_DIM
        if name == "input_features" and hasattr(config, "max_source_positions"):  # Whisper
            return _BATCH_DIM, config.num_mel_bins, 2 * config.max_source_positions
        if name == "input_values" and hasattr(config, "num_mel_bins"):  # spectrograms
            return _BATCH_DIM, config.max_length, config.num_mel_bins
        if name == "input_values":  # samples of sound
            return _BATCH_DIM, _SEQLEN_DIM
        return None

    def _tensor(self, name: str, dims: Dims, sizes: Mapping[str, int]) -> torch.Tensor:
        shape = [dim if isinstance(dim, int) else self._size(dim, sizes, name) for dim in dims]
        if name.endswith("input_ids"):
            return torch.randint(0, self._text.vocab_size, shape)
        if name == "attention_mask":
            return torch.ones(shape, dtype=torch.int64)
        return torch.randn(shape).to(self._model.dtype)

    def _size(self, dim: str, sizes: Mapping[str, int], name: str) -> int:
        if dim in sizes:
            return sizes[dim]
        if dim == _BATCH_DIM:
            return 1
        if dim == _SIDE_DIM:
            return self._side()
        if dim == _DECODER_DIM:
            return sizes.get(_SEQLEN_DIM, 1)
        raise SettingsError(
            f"{name} of {type(self._model).__name__} has the dim {dim}, which has no size",
            f"bind sizes: --seqlens 128,256 or --dims {dim}=128",
        )

    def _images(self) -> Any:
        return getattr(self._config, "vision_config", None) or self._config

    def _side(self) -> int:
        side = getattr(self._images(), "image_size", None)
        found = side[0] if isinstance(side, (list, tuple)) and len({*side}) == 1 else side
        if not isinstance(found, int):
            raise SettingsError(
                f"pixel_values of {type(self._model).__name__} has the dim {_SIDE_DIM}, which has "
                f"no size: the config names no square image_size ({side})",
                f"bind it: --dims {_SIDE_DIM}=224",
            )
        return found

    def _check(self, inputs: Mapping[str, torch.Tensor]) -> None:
        if self._is_checked:
            return
        some = {name: each for name, each in inputs.items() if name != "attention_mask"}
        device = self._model.device

        def make_fakes() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
            fakes = {
                name: torch.empty(list(each.shape), dtype=each.dtype, device=device)
                for name, each in some.items()
            }
            return (), fakes

        try:
            fake_copy(self._model).call(make_fakes)
        except RejectedCallError as error:
            reason = first_line(error.__cause__ or error)
            shapes = [f"{name} of {' x '.join(map(str, x.shape))}" for name, x in some.items()]
            said = f"forward with {', '.join(shapes)}: {reason}"
            raise self._refusal(said, next(iter(some))) from error
        self._is_checked = True

    def _refusal(self, reason: str, main: str) -> ModelError:
        dims = ",".join(map(str, self._known_dims(main) or (_BATCH_DIM, _SEQLEN_DIM)))
        named = f"{main}=[{dims}]{':i64' if main.endswith('_ids') else ''}"
        return ModelError(
            f"the inputs of {type(self._model).__name__} cannot be made ({reason})",
            f'give sizes that it takes, or name all inputs, such as --input "{named}"; forward '
            f"takes {', '.join(self._parameters)}",
        )


_CONFIG_FILE: Final = "config.json"
_MOST_SAID: Final = 400  # letters of an error of transformers, whose reason is its last line
_FLOAT_TAG: Final = "__float__"
_WEIGHTS_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = ("model.safetensors", _WEIGHTS_INDEX)


def load_pretrained(target: ModelTarget) -> LoadedModel:
    """Return the model of *target*: ``FOLDER``, ``CONFIG.json``, each also with ``:CLASS``."""
    # CLASS is of transformers, else the first of the config's ``architectures``; the arguments of
    # *target* replace fields of the config. Random weights are the same in each process. A
    # ModelError where something is missing, the model needs its own code, or weights are no
    # safetensors.
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
    with torch.random.fork_rng(devices=[]), _errors_of(target):
        torch.manual_seed(SEED)
        if target.is_random:
            model = definition._from_config(config)  # noqa: SLF001  as the library's Auto classes do
        else:
            model = _with_weights(definition, config, file, target)
    origin = "as named" if name else f"the first of architectures in {file.name}"
    label = file.parent.name if file.name == _CONFIG_FILE else file.stem
    weights = "random weights" if target.is_random else "weights from safetensors"
    inputs = ForwardInputs(model)
    module = GenerationStep(model) if model.can_generate() else model
    assumed = Assumption(
        f"model: {definition.__name__}, {origin}, {weights}; no code of the folder is run",
        f"--model {PRETRAINED}PATH:CLASS names another class",
    )
    inputs_assumed = None
    if inputs.are_known:
        said = f"inputs: {inputs}, from forward and the config"
        inputs_assumed = Assumption(said, '--input "NAME=[...]" names others')
    label = ".".join(filter(None, (label, name)))
    about = assumed, inputs_assumed
    return LoadedModel(module.eval(), inputs, label, "", False, *about)  # noqa: FBT003


def _find(target: ModelTarget) -> tuple[Path, str]:
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
            "name its folder, or write hf-random:",
        )
    return file.absolute(), name


def _config(transformers: Any, file: Path, target: ModelTarget) -> Any:
    try:
        # Transformers 5 writes numbers that JSON lacks as objects: {"__float__": "Infinity"}.
        fields = json.loads(
            file.read_text(encoding="utf-8"),
            object_hook=lambda each: float(each[_FLOAT_TAG]) if [*each] == [_FLOAT_TAG] else each,
        )
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
                f"--model: {type(known).__name__} has no field {', '.join(unknown)}",
                "name fields of the config",
            )
        return transformers.AutoConfig.for_model(kind, **{**fields, **target.arguments})


def _class(transformers: Any, config: Any, name: str, target: ModelTarget) -> Any:
    wanted = name or next(iter(getattr(config, "architectures", None) or ()), "")
    if not wanted:
        raise ModelError(
            f"--model {target}: the config names no architectures",
            f"name the class: --model {replace(target, place=f'{target.place}:CLASS')}",
        )
    with _errors_of(target):  # a package beside it may be broken, such as torchvision
        definition = getattr(transformers, wanted, None)
    is_model = isinstance(definition, type) and issubclass(definition, nn.Module)
    if not is_model or not hasattr(definition, "_from_config"):
        raise ModelError(
            f"--model {target}: transformers {transformers.__version__} has no model class "
            f"{wanted!r}",
            "name a class that can be made of this config, such as LlamaForCausalLM",
        )
    return definition


def _with_weights(definition: Any, config: Any, file: Path, target: ModelTarget) -> nn.Module:
    if not any((file.parent / name).is_file() for name in _WEIGHTS):
        raise ModelError(
            f"--model {target}: no {' or '.join(_WEIGHTS)} in the folder; other formats are code, "
            "and are not loaded",
            "save it with save_pretrained(), or write hf-random:",
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
            "name the class that was saved, or write hf-random:",
        )
    return model


@contextlib.contextmanager
def _errors_of(target: ModelTarget) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the library raises whatever its parts raise
        cause = error.__cause__ or error
        said = " ".join(str(cause).split())[:_MOST_SAID]
        raise ModelError(
            f"--model {target}: transformers failed ({type(cause).__name__}: {said})"
        ) from error
