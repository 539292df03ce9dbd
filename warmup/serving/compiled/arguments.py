"""The arguments of a call: which tensors in them have a dynamic dim, and putting others there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from warmup.buckets.dims import DynamicDim
from warmup.core.errors import SettingsError

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
Find = Callable[[tuple[Any, ...], Mapping[str, Any]], torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]


class TensorArgument:
    """Where the tensor of *axis* is in the calls of *model*.

    Raises:
        SettingsError: forward has no such argument.
    """

    def __init__(self, model: nn.Module, axis: DynamicDim) -> None:
        parameters = inspect.signature(model.forward).parameters
        kinds = {each.kind for each in parameters.values()}
        name = str(axis.path[0])
        if name not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise SettingsError(
                f"dims {axis}: forward has no argument {name!r}",
                f"name one of {', '.join(parameters)}",
            )
        self.axis = axis
        self._name, self._rest = name, axis.path[1:]
        self._position = _position(parameters, name)

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Return the tensor.

        Raises:
            SettingsError: the call has none there, or one with fewer dims.
        """
        try:
            value = args[self._position] if self._position < len(args) else kwargs[self._name]
            for part in self._rest:
                value = value[part]
            value.shape[self.axis.dim]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"a call has no tensor with the dim {self.axis}", "pass it, or correct dims"
            ) from error
        found: torch.Tensor = value
        return found

    def replace(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], change: Change
    ) -> Arguments:
        """Return the arguments with the tensor changed; containers on the way are copied.

        Raises:
            SettingsError: as above, or a container is neither a dict, a list nor a tuple.
        """
        self.find(args, kwargs)
        if self._position < len(args):
            made = self._replaced(args[self._position], self._rest, change)
            return (*args[: self._position], made, *args[self._position + 1 :]), kwargs
        made = self._replaced(kwargs[self._name], self._rest, change)
        return args, {**kwargs, self._name: made}

    def _replaced(self, value: Any, path: Sequence[str | int], change: Change) -> Any:
        if not path:
            return change(value)
        made = self._replaced(value[path[0]], path[1:], change)
        if type(value) is dict:
            return {**value, path[0]: made}
        if type(value) in (list, tuple):
            return type(value)(made if i == path[0] else each for i, each in enumerate(value))
        raise SettingsError(
            f"dims {self.axis}: what holds the tensor is a {type(value).__name__}",
            "pass a dict, a list or a tuple",
        )


def _position(parameters: Mapping[str, inspect.Parameter], name: str) -> int:
    """Return where *name* is among positional arguments; beyond all of them where it is not."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [key for key, each in parameters.items() if each.kind in positional]
    return names.index(name) if name in names else 1 << 30
