"""`serving_call`: serves calls by an artifact that was compiled ahead of time, others otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from warmup.core.errors import ModelError

if TYPE_CHECKING:
    from warmup.inductor.ahead_of_time import LoadedArtifact


@dataclass(frozen=True, slots=True)
class ArgumentNames:
    """The names of forward's arguments, and the defaults of those that have any."""

    positional: tuple[str, ...]
    order: tuple[str, ...]
    defaults: Mapping[str, Any]

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of a call by name, in forward's order, without equal defaults.

        None where forward takes fewer positional arguments. So calls that mean the same are alike,
        whether they pass an argument by position, by name or not at all.
        """
        if len(args) > len(self.positional):
            return None
        given = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        defaults = self.defaults
        ordered = {
            name: given.pop(name)
            for name in self.order
            if name in given and not (name in defaults and given[name] is defaults[name])
        }
        return {**ordered, **{name: given[name] for name in given if name not in self.order}}


def argument_names(model: nn.Module) -> ArgumentNames:
    """Return the names of the arguments of forward of *model*.

    Raises:
        ModelError: forward has arguments that cannot be named.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ModelError(
                f"forward takes {parameter.name} by position only",
                "a call compiled ahead of time passes its arguments by name",
            )
    named = [one for one in parameters if one.kind is not one.VAR_KEYWORD]
    return ArgumentNames(
        tuple(one.name for one in named if one.kind is one.POSITIONAL_OR_KEYWORD),
        tuple(one.name for one in named),
        {one.name: one.default for one in named if one.default is not one.empty},
    )


def serving_call(
    model: nn.Module, loaded: LoadedArtifact, names: ArgumentNames, otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that serves calls of *model* by *loaded*, others by *otherwise*.

    The guards of the artifact decide, as those of torch.compile do.
    """
    fits, run, named = loaded.fits, loaded.run, names.named

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = named(args, kwargs)
        if arguments is not None and fits(model, arguments):
            return run(model, arguments)
        return otherwise(*args, **kwargs)

    return call
