"""`GenerationStep`: a transformers model, called as generate() calls it with a static cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from warmup.core.errors import ModelError


class _StepReachedError(Exception):
    """Ends a generate() whose call of the model was recorded."""


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    """The arguments of a recorded call, and what its cache held before it.

    *name* is the argument with the cache: ``past_key_values``, since transformers 5.24 ``cache``.
    """

    kwargs: Mapping[str, Any]
    name: str
    cache: Any
    held: tuple[tuple[Any, Mapping[str, Any]], ...]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments, with the cache as it was before the call.

        A cache with memory keeps its addresses, which torch compiles into the graph.
        """
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
    of so many tokens: the first one, on a prompt, or where ``input_ids`` is a single token, or the
    model has an encoder, the second one, on a new token. generate() itself makes the step's
    arguments, outside of the compiled graph; the graph is that of ``model`` alone. The output is
    the logits, and every call starts with the same cache.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._steps: dict[tuple[object, ...], _RecordedStep] = {}

    def forward(self, *args: Any, max_length: int | None = None, **inputs: Any) -> Any:
        """Return the model's output or, with *max_length*, the logits of a step of generate()."""
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
        """Let generate() make the arguments; a ModelError where it does not get there."""
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
        name = _cache_name(kwargs)
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


class _replaced_forward:  # noqa: N801  a context manager
    """Has *function* in place of the forward of *model*, whose signature it takes."""

    def __init__(self, model: Any, function: Callable[..., Any]) -> None:
        import functools

        self._model = model
        self._function = functools.wraps(model.forward)(function)

    def __enter__(self) -> None:
        self._had = self._model.__dict__.get("forward")
        self._model.__dict__["forward"] = self._function

    def __exit__(self, *_: object) -> None:
        if self._had is None:
            del self._model.__dict__["forward"]
        else:
            self._model.__dict__["forward"] = self._had


def _cache_name(kwargs: Mapping[str, Any]) -> str | None:
    """Return the argument of *kwargs* that is a cache of transformers."""
    from transformers import Cache

    return next((name for name, value in kwargs.items() if isinstance(value, Cache)), None)


def _layers(cache: Any) -> Iterator[Any]:
    """Yield what holds the tensors of *cache*: its layers, or those of its two halves."""
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
