"""The constants in the module that inductor generated for a graph: read, dropped, and replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch

from warmup.inductor.layers.form import UnshareableLayerError


def names_of_constants(graph: Any) -> list[str]:
    """Return the names of the constants in the module that was generated for inductor's *graph*."""
    return [*(graph.constants or {}), *graph.frozen_param_names]


def constants_of(graph: Any) -> dict[str, torch.Tensor]:
    """Return the constants of inductor's *graph*, by name in the generated module."""
    scope = _function_of(graph).__globals__
    return {name: scope[name] for name in names_of_constants(graph)}


def drop_constants(graph: Any) -> None:
    """Free the constants that *graph* was compiled with; `with_constants` gives it others."""
    _function_of(graph).__globals__.update(dict.fromkeys(names_of_constants(graph)))
    graph.constants = dict.fromkeys(graph.constants or {})


def with_constants(graph: Any, constants: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
    """Return the function that *graph* runs, with other *constants*."""
    call, function = graph.current_callable, _function_of(graph)
    scope = {**function.__globals__, **constants}
    other = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    return MethodType(other, call.__self__) if isinstance(call, MethodType) else other


def _function_of(graph: Any) -> Any:
    call = graph.current_callable
    if isinstance(call, MethodType) and not getattr(call.__self__, "partitions", ()):
        return call.__func__
    if isinstance(call, FunctionType):
        return call
    raise UnshareableLayerError("is compiled in several parts, whose constants are not swapped")
