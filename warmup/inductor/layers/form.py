"""`CallForm`: how a layer is called and what it returns, written as the forward of its stand-in.

The stand-in's forward is traced by dynamo in the graph around the layers: it passes the tensors
that the layer's artifact needs to the opaque op, and puts the outputs into the containers that the
layer returns. It is generated text, because dynamo guards what a closure holds, layer by layer, and
guards nothing of a constant in code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from warmup.inductor.layers.opaque_call import call_layer

Path = tuple[Any, ...]  # into (args, kwargs): 0 or 1, then keys
_CONSTANTS: Final = (bool, int, float, str, bytes, type(None), torch.dtype)
_VALUES: Final = ("args", "kwargs")


class UnshareableLayerError(Exception):
    """A layer cannot be compiled alone. Argument: why, as what follows the layer's name."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The text of a stand-in's forward, but for the number of the call."""

    text: str

    def forward(self, number: int, outputs: str = "") -> Callable[..., Any]:
        """Return the forward of the layer with call *number*, whose outputs are named *outputs*."""
        names: dict[str, Any] = {}
        text = self.text.replace(_NUMBER, f"{number}, {outputs!r}")
        exec(text, {**globals()}, names)  # noqa: S102  text of this module, see above
        made: Callable[..., Any] = names["forward"]
        return made


_NUMBER: Final = "NUMBER"


def tensors_of_call(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield each tensor of a call with its path."""
    for path, leaf in _leaves((tuple(args), dict(kwargs)), ()):
        if isinstance(leaf, torch.Tensor):
            yield path, leaf


def form_of(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    needed: Sequence[Path],
    result: Any,
    outputs: Sequence[Any],
) -> CallForm:
    """Return the form of a call whose artifact needs the tensors at *needed* and gives *outputs*.

    Raises:
        UnshareableLayerError: an argument or what is returned is neither a tensor, a constant nor
            a list, tuple or dict of these; or a tensor is returned that is no output and no
            argument.
    """
    call = (tuple(args), dict(kwargs))
    expected = " and ".join(_conditions(call, ()))
    passed: dict[int, Path | None] = {}
    for path, leaf in tensors_of_call(args, kwargs):
        passed[id(leaf)] = None if id(leaf) in passed else path  # None: one tensor in two places
    made = {id(tensor): position for position, tensor in enumerate(outputs)}
    returned = _expression(result, made, passed)
    inputs = ", ".join(_access(path) for path in needed)
    return CallForm(
        "def forward(*args, **kwargs):\n"
        f"    if not ({expected}):\n"
        f"        call_layer([], {_NUMBER})\n"
        f"    outputs = call_layer([{inputs}], {_NUMBER})\n"
        f"    return {returned}\n"
    )


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if type(value) is dict:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif type(value) in (list, tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, value


def _access(path: Path) -> str:
    return _VALUES[path[0]] + "".join(f"[{key!r}]" for key in path[1:])


def _conditions(value: Any, path: Path) -> Iterator[str]:
    """Yield what is true of the arguments of a call of this form, as expressions."""
    place = _access(path) if path else ""
    if type(value) in (dict, list, tuple):
        yield from _container_conditions(value, path)
    elif isinstance(value, torch.Tensor):
        yield f"isinstance({place}, torch.Tensor)"
    elif value is None or type(value) is bool:
        yield f"{place} is {value!r}"
    elif type(value) in _CONSTANTS:
        yield f"{place} == {value!r}"
    else:
        raise UnshareableLayerError(f"is called with a {type(value).__name__}, argument {place}")


def _container_conditions(value: Any, path: Path) -> Iterator[str]:
    is_dict = type(value) is dict
    keys = list(value) if is_dict else range(len(value))
    if any(type(key) not in (str, int) for key in keys):
        raise UnshareableLayerError(f"is called with a dict that has the keys {list(keys)}")
    if len(path) > 1:  # args and kwargs themselves are a tuple and a dict
        yield f"type({_access(path)}) is {type(value).__name__}"
    if path:
        place = _access(path)
        yield f"list({place}) == {keys!r}" if is_dict else f"len({place}) == {len(value)}"
    for key in keys:
        yield from _conditions(value[key], (*path, key))


def _expression(value: Any, made: Mapping[int, int], passed: Mapping[int, Path | None]) -> str:
    """Return the text that makes what the layer returns from ``outputs`` and its arguments."""
    if isinstance(value, torch.Tensor):
        if id(value) in passed:
            path = passed[id(value)]
            if path is None:
                raise UnshareableLayerError("returns a tensor that is two of its arguments")
            return _access(path)
        if id(value) in made:
            return f"outputs[{made[id(value)]}]"
        raise UnshareableLayerError("returns a view of an argument, or what no kernel computed")
    if type(value) in (list, tuple):
        inner = "".join(f"{_expression(each, made, passed)}, " for each in value)
        return f"[{inner}]" if type(value) is list else f"({inner})"
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        items = (f"{key!r}: {_expression(each, made, passed)}" for key, each in value.items())
        return f"{{{', '.join(items)}}}"
    if type(value) in _CONSTANTS:
        return repr(value)
    raise UnshareableLayerError(f"returns a {type(value).__name__}")


__all__ = ["CallForm", "UnshareableLayerError", "call_layer", "form_of", "tensors_of_call"]
