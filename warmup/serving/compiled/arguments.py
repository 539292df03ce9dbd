"""`TensorArgument`: where the tensor of a dynamic dim is in the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from warmup.buckets.dims import DynamicDim
from warmup.core.errors import SettingsError

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
Change = Callable[[torch.Tensor], torch.Tensor]


class TensorArgument:
    """The tensor with the dynamic dim *dim* in each call of *model*.

    Raises:
        SettingsError: forward has no such argument.
    """

    def __init__(self, model: nn.Module, dim: DynamicDim) -> None:
        parameters = inspect.signature(model.forward).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        name = str(dim.path[0])
        if name not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise SettingsError(
                f"dims {dim}: forward has no argument {name!r}",
                f"name one of {', '.join(parameters)}",
            )
        self.dim = dim
        self._name, self._path = name, dim.path[1:]
        self._position = _position(parameters, name)

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Return the tensor in the arguments of a call.

        Raises:
            SettingsError: the call has no tensor there, or a tensor with fewer dims.
        """
        try:
            value = args[self._position] if self._position < len(args) else kwargs[self._name]
            for part in self._path:
                value = value[part]
            value.shape[self.dim.dim]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"a call has no tensor with the dim {self.dim}", "pass it, or correct dims"
            ) from error
        tensor: torch.Tensor = value
        return tensor

    def replace(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], change: Change
    ) -> Arguments:
        """Return the arguments with the tensor changed; containers around the tensor are copied.

        Raises:
            SettingsError: as `find`, or a container is neither a dict, a list nor a tuple.
        """
        self.find(args, kwargs)
        if self._position < len(args):
            changed = self._replaced(args[self._position], self._path, change)
            return (*args[: self._position], changed, *args[self._position + 1 :]), kwargs
        changed = self._replaced(kwargs[self._name], self._path, change)
        return args, {**kwargs, self._name: changed}

    def _replaced(self, value: Any, path: Sequence[str | int], change: Change) -> Any:
        if not path:
            return change(value)
        changed = self._replaced(value[path[0]], path[1:], change)
        if type(value) is dict:
            return {**value, path[0]: changed}
        if type(value) in (list, tuple):
            return type(value)(changed if i == path[0] else item for i, item in enumerate(value))
        raise SettingsError(
            f"dims {self.dim}: the tensor is in a {type(value).__name__}",
            "pass a dict, a list or a tuple",
        )


def _position(parameters: Mapping[str, inspect.Parameter], name: str) -> int:
    """Return the position of *name* among positional arguments; a huge one if it has none."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [key for key, parameter in parameters.items() if parameter.kind in positional]
    return names.index(name) if name in names else 1 << 30
