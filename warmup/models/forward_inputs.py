"""`ForwardInputs`: the inputs of a transformers model, from its forward and its config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import torch

from warmup.core.error_text import first_line
from warmup.core.errors import ModelError, SettingsError
from warmup.models.fake_model import RejectedCallError, fake_copy

MAX_LENGTH: Final = "max_length"  # as generate() calls the tokens that a static cache is for
_BATCH_DIM: Final = "batch"
_SEQLEN_DIM: Final = "seqlen"
_DECODER_DIM: Final = "decoder_seqlen"
_SIDE_DIM: Final = "side"
_INPUT_DIMS: Final = (_BATCH_DIM, _SEQLEN_DIM, _DECODER_DIM, _SIDE_DIM, MAX_LENGTH)


class ForwardInputs:
    """Makes the inputs of *model* for the sizes of a bucket; ``str()`` names them with their dims.

    Ids are random and below the vocabulary, masks are all ones, images and sound are random normal
    numbers. With the dim ``max_length`` the inputs are those of a step of generate().
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config = model.config
        self._text = model.config.get_text_config()
        self._parameters = inspect.signature(model.forward).parameters
        self._is_checked = False

    @property
    def are_known(self) -> bool:
        """Whether the model's main argument is among those that inputs can be made for."""
        return self._known_dims(self._model.main_input_name) is not None

    def __str__(self) -> str:
        return " ".join(f"{name}=[{','.join(map(str, dims))}]" for name, dims in self._dims())

    def __call__(self, **sizes: int) -> Mapping[str, Any]:
        """Return the inputs for *sizes*, by argument of forward.

        Raises:
            SettingsError: a dim is unknown, or has no size and needs one.
            ModelError: forward does not take these inputs; the message names its arguments.
        """
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

    def _dims(self) -> list[tuple[str, tuple[str | int, ...]]]:
        """Return the arguments to make, each with its dims.

        Raises:
            ModelError: the model's main argument is unknown here.
        """
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

    def _dims_of(self, name: str) -> tuple[str | int, ...]:
        dims = self._known_dims(name)
        if dims is None:
            reason = f"{name}, the model's main argument, is none of those known"
            raise self._refusal(reason, [name])
        return dims

    def _known_dims(self, name: str) -> tuple[str | int, ...] | None:
        config = self._config
        if name == "input_ids":
            return _BATCH_DIM, _SEQLEN_DIM
        if name == "pixel_values":
            frames = [config.num_frames] if hasattr(config, "num_frames") else []  # of a video
            return _BATCH_DIM, *frames, self._channels(), _SIDE_DIM, _SIDE_DIM
        if name == "input_features" and hasattr(config, "max_source_positions"):  # Whisper
            return _BATCH_DIM, config.num_mel_bins, 2 * config.max_source_positions
        if name == "input_values" and hasattr(config, "num_mel_bins"):  # spectrograms
            return _BATCH_DIM, config.max_length, config.num_mel_bins
        if name == "input_values":  # samples of sound
            return _BATCH_DIM, _SEQLEN_DIM
        return None

    def _tensor(
        self, name: str, dims: tuple[str | int, ...], sizes: Mapping[str, int]
    ) -> torch.Tensor:
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

    def _channels(self) -> int:
        return int(getattr(self._images(), "num_channels", 3))

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
        """Check once, on fake tensors, that forward takes *inputs*.

        Masks are left out: with fake ones the library asks whether all are ones.

        Raises:
            ModelError: it does not.
        """
        if self._is_checked:
            return
        some = {name: each for name, each in inputs.items() if name != "attention_mask"}
        fakes = {name: (each.shape, each.dtype) for name, each in some.items()}
        device = self._model.device
        try:
            fake_copy(self._model).call(
                lambda: (
                    (),
                    {
                        name: torch.empty(shape, dtype=dtype, device=device)
                        for name, (shape, dtype) in fakes.items()
                    },
                )
            )
        except RejectedCallError as error:
            reason = first_line(error.__cause__ or error)
            shapes = (
                f"{name} of {' x '.join(map(str, each.shape))}" for name, each in some.items()
            )
            raise self._refusal(f"forward with {', '.join(shapes)}: {reason}", [*some]) from error
        self._is_checked = True

    def _refusal(self, reason: str, made: list[str]) -> ModelError:
        others = [
            name
            for name, parameter in self._parameters.items()
            if name not in (*made, "self", "kwargs") and not _is_flag(parameter)
        ]
        others.sort(key=lambda name: name not in reason)
        dims = self._known_dims(made[0]) or (_BATCH_DIM, _SEQLEN_DIM)
        named = [f'--input "{made[0]}=[{",".join(map(str, dims))}]{_dtype_of(made[0])}"']
        named += [f'--input "{name}=[...]{_dtype_of(name)}"' for name in others[:1]]
        return ModelError(
            f"the inputs of {type(self._model).__name__} cannot be made ({reason})",
            f"give sizes that it takes, or name all inputs, such as {' '.join(named)}; forward "
            f"takes {', '.join(self._parameters)}",
        )


def _is_flag(parameter: inspect.Parameter) -> bool:
    """Return whether forward's *parameter* is a truth value, such as ``return_dict``."""
    annotation = str(parameter.annotation)
    return "bool" in annotation and "Tensor" not in annotation


def _dtype_of(name: str) -> str:
    """Return what the input *name* has behind its dims: nothing where it has the model's dtype."""
    return ":i64" if name.endswith(("_ids", "_mask")) else ""
