"""`CallForm`: how a layer is called and what it returns, written as the forward of its stand-in.

The stand-in's forward is traced by dynamo in the graph around the layers: it passes the tensors
that the layer's artifact needs to the opaque op, and puts the outputs into the containers that the
layer returns. Its code is made of literals by `ast`: dynamo guards what a closure holds, layer by
layer, and traces each step of a function that reads a form (docs/decisions, 0016).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

import torch

from warmup.inductor.layers.opaque_call import call_layer

Path = tuple[Any, ...]  # into (args, kwargs): 0 or 1, then keys
_CONSTANTS: Final = (bool, int, float, str, bytes, type(None), torch.dtype)
_VALUES: Final = ("args", "kwargs")
_FOUND_OUTPUTS: Final = "outputs"
_LOAD: Final = ast.Load()


class UnshareableLayerError(Exception):
    """A layer cannot be compiled alone. Argument: why, as what follows the layer's name."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The code of a stand-in's forward, but for the number of the call.

    The layer is called with what makes all ``conditions`` true; its artifact gets ``inputs``, and
    ``returned`` makes of its outputs what the layer returns.
    """

    conditions: tuple[ast.expr, ...]
    inputs: tuple[ast.expr, ...]
    returned: ast.expr

    def forward(self, number: int, outputs: str = "") -> Callable[..., Any]:
        """Return the forward of the layer with call *number*, whose outputs are named *outputs*."""
        operands = [ast.Constant(number), ast.Constant(outputs)]

        def call(inputs: Sequence[ast.expr]) -> ast.expr:
            return _call("call_layer", ast.List([*inputs], _LOAD), *operands)

        is_other = ast.UnaryOp(ast.Not(), ast.BoolOp(ast.And(), [*self.conditions]))
        body: list[ast.stmt] = [
            ast.If(is_other, [ast.Expr(call(()))], []),
            ast.Assign([ast.Name(_FOUND_OUTPUTS, ast.Store())], call(self.inputs)),
            ast.Return(self.returned),
        ]
        return _function(body)


def _function(body: list[ast.stmt]) -> Callable[..., Any]:
    """Return a function of this module, ``forward(*args, **kwargs)``, with this *body*."""
    module = ast.parse("def forward(*args, **kwargs): ...")
    (definition,) = module.body
    assert isinstance(definition, ast.FunctionDef)
    definition.body = body
    ast.fix_missing_locations(module)
    constants = compile(module, __file__, "exec").co_consts
    (code,) = (each for each in constants if isinstance(each, CodeType))
    return FunctionType(code, globals())


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
        UnshareableLayerError: an argument or a result is something else than a tensor, a constant,
            or a list, tuple or dict of tensors and constants; or a tensor is returned that is
            neither an output of the artifact nor an argument.
    """
    call = (tuple(args), dict(kwargs))
    conditions = tuple(_conditions(call, ()))
    passed: dict[int, Path | None] = {}
    for path, leaf in tensors_of_call(args, kwargs):
        passed[id(leaf)] = None if id(leaf) in passed else path  # None: one tensor in two places
    made = {id(tensor): position for position, tensor in enumerate(outputs)}
    returned = _expression(result, made, passed)
    return CallForm(conditions, tuple(_access(path) for path in needed), returned)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if type(value) is dict:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif type(value) in (list, tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, value


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(function, _LOAD), [*arguments], [])


def _item(of: ast.expr, key: str | int) -> ast.expr:
    return ast.Subscript(of, ast.Constant(key), _LOAD)


def _access(path: Path) -> ast.expr:
    place: ast.expr = ast.Name(_VALUES[path[0]], _LOAD)
    for key in path[1:]:
        place = _item(place, key)
    return place


def _constant(value: Any) -> ast.expr:
    if isinstance(value, torch.dtype):
        return ast.Attribute(ast.Name("torch", _LOAD), str(value).removeprefix("torch."), _LOAD)
    return ast.Constant(value)


def _compared(place: ast.expr, operator: ast.cmpop, value: ast.expr) -> ast.expr:
    return ast.Compare(place, [operator], [value])


def _conditions(value: Any, path: Path) -> Iterator[ast.expr]:
    """Yield what is true of the arguments of a call of this form."""
    if type(value) in (dict, list, tuple):
        yield from _container_conditions(value, path)
        return
    place = _access(path)
    if isinstance(value, torch.Tensor):
        yield _call("isinstance", place, ast.Attribute(ast.Name("torch", _LOAD), "Tensor", _LOAD))
    elif value is None or type(value) is bool:
        yield _compared(place, ast.Is(), ast.Constant(value))
    elif type(value) is float and math.isnan(value):  # equals nothing, not even itself
        yield _compared(place, ast.NotEq(), place)
    elif type(value) in _CONSTANTS:
        yield _compared(place, ast.Eq(), _constant(value))
    else:
        name = ast.unparse(place)
        raise UnshareableLayerError(f"is called with a {type(value).__name__}, argument {name}")


def _container_conditions(value: Any, path: Path) -> Iterator[ast.expr]:
    is_dict = type(value) is dict
    keys = list(value) if is_dict else range(len(value))
    if any(type(key) not in (str, int) for key in keys):
        raise UnshareableLayerError(f"is called with a dict that has the keys {list(keys)}")
    if len(path) > 1:  # args and kwargs themselves are a tuple and a dict
        kind = ast.Name(type(value).__name__, _LOAD)
        yield _compared(_call("type", _access(path)), ast.Is(), kind)
    if path and is_dict:
        names = ast.List([ast.Constant(key) for key in keys], _LOAD)
        yield _compared(_call("list", _access(path)), ast.Eq(), names)
    elif path:
        yield _compared(_call("len", _access(path)), ast.Eq(), ast.Constant(len(value)))
    for key in keys:
        yield from _conditions(value[key], (*path, key))


def _expression(value: Any, made: Mapping[int, int], passed: Mapping[int, Path | None]) -> ast.expr:
    """Return what makes what the layer returns from ``outputs`` and its arguments."""
    if isinstance(value, torch.Tensor):
        if id(value) in passed:
            path = passed[id(value)]
            if path is None:
                raise UnshareableLayerError("returns a tensor that is two of its arguments")
            return _access(path)
        if id(value) in made:
            return _item(ast.Name(_FOUND_OUTPUTS, _LOAD), made[id(value)])
        raise UnshareableLayerError("returns a view of an argument, or what no kernel computed")
    if type(value) in (list, tuple):
        inner = [_expression(each, made, passed) for each in value]
        return ast.List(inner, _LOAD) if type(value) is list else ast.Tuple(inner, _LOAD)
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        names: list[ast.expr | None] = [ast.Constant(key) for key in value]
        return ast.Dict(names, [_expression(each, made, passed) for each in value.values()])
    if type(value) in _CONSTANTS:
        return _constant(value)
    raise UnshareableLayerError(f"returns a {type(value).__name__}")


__all__ = ["CallForm", "UnshareableLayerError", "call_layer", "form_of", "tensors_of_call"]
