"""`value_at`: the value at a place that dynamo has read, without evaluating text as code.

Dynamo writes a place as an expression of the frame that it compiled, as
``L['layer']._modules['up']._parameters['weight']``. Attributes, subscripts with constants and the
calls below are what occurs in layers that can be shared; a place with anything else is refused.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from warmup.inductor.layers.form import UnshareableLayerError

LAYER: Final = "layer"  # the name of the layer in the frame that dynamo compiles
_ALLOWED_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "dict": dict,
    "dict.__getitem__": dict.__getitem__,
    "dict.keys": dict.keys,
    "getattr": getattr,
    "list": list,
    "list.__getitem__": list.__getitem__,
    "object.__getattribute__": object.__getattribute__,
    "type": type,
}


class MissingPlaceError(UnshareableLayerError):
    """A place that dynamo has read is not there: what it read is that, as in ``hasattr``."""


class _OtherExpressionError(Exception):
    """An expression has a part that is no place. Argument: the part."""


def value_at(
    text: str, layer: nn.Module, names: dict[str, Any], frame: Mapping[str, Any] | None = None
) -> Any:
    """Return the value of dynamo's expression *text* for *layer*, with *names* as globals.

    Raises:
        UnshareableLayerError: it is an expression that only dynamo can evaluate.
        MissingPlaceError: the layer has no such place.
    """
    scope = {"L": frame if frame is not None else {LAYER: layer}, "G": names}
    try:
        return _value(_parsed(text), scope)
    except _OtherExpressionError as error:
        part = f", in which {error} is none" if str(error) != text else ""
        raise UnshareableLayerError(f"reads {text}, which is no plain place{part}") from error
    except (LookupError, AttributeError) as error:
        raise MissingPlaceError(f"reads {text}, which is missing ({error})") from error
    except (TypeError, SyntaxError) as error:
        raise UnshareableLayerError(f"reads {text}, which is no plain place ({error})") from error


@functools.cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, scope: Mapping[str, Mapping[str, Any]]) -> Any:
    match node:
        case ast.Name(id="L" | "G" as name):
            return scope[name]
        case ast.Attribute(value=owner, attr=attribute):
            return getattr(_value(owner, scope), attribute)
        case ast.Subscript(value=owner, slice=key):
            return _value(owner, scope)[_constant(key)]
        case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[], keywords=[]):
            tensor = _value(owner, scope)
            if isinstance(tensor, torch.Tensor):
                return tensor.size()
        case ast.Call(func=function, args=[of, *keys], keywords=[]):
            if (call := _ALLOWED_CALLS.get(ast.unparse(function))) is not None:
                return call(_value(of, scope), *map(_constant, keys))
    raise _OtherExpressionError(ast.unparse(node))


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise _OtherExpressionError(ast.unparse(node)) from error


def readable(text: str) -> str:
    """Return dynamo's expression or guard *text* without its notes, in the names of the layer."""
    short = " ".join(text.partition("#")[0].split())
    for long, plain in (
        (f"L['{LAYER}']", LAYER),
        ("L['args']", "args"),
        ("L['kwargs']", "kwargs"),
        ("_modules['", "["),
        ("_parameters['", "["),
        ("_buffers['", "["),
    ):
        short = short.replace(long, plain)
    for name in _bracketed(short):
        short = short.replace(f".[{name}']", f".{name}")
    return short


def _bracketed(text: str) -> Iterator[str]:
    for part in text.split(".[")[1:]:
        yield part.partition("']")[0]
