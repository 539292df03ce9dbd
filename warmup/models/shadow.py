"""`shadow_of`: a model in which some layers have another forward, beside the untouched original."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

Forwards = Mapping[nn.Module, Callable[..., Any]]
_REPLACED: Final = ("_modules", "forward")


@dataclass(frozen=True, slots=True)
class Shadow:
    """A model that calls other functions for some layers, and its copies by the module copied."""

    model: nn.Module
    copies: dict[nn.Module, nn.Module]

    def changed(self) -> list[str]:
        """Return the names of attributes in which a copy and its original differ by now."""
        names: list[str] = []
        for module, copy in self.copies.items():
            own, other = vars(module), vars(copy)
            names += [
                name
                for name in own.keys() | other.keys()
                if name not in _REPLACED and own.get(name, _REPLACED) is not other.get(name)
            ]
        return sorted(names)


def shadow_of(model: nn.Module, forwards: Forwards) -> Shadow:
    """Return *model* with the layers in *forwards* calling these functions instead of their own.

    The layers, and the modules on the way to them, are copies that share everything but the dict of
    their attributes and the dict of their children; all other modules are the model's own.
    """
    done: dict[nn.Module, nn.Module] = {}
    shadow = _copied(model, forwards, done)
    return Shadow(shadow, {module: copy for module, copy in done.items() if copy is not module})


def _copied(module: nn.Module, forwards: Forwards, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in done:
        return done[module]
    done[module] = module  # a module that is its own descendant
    if module in forwards:
        done[module] = copy = _copy_of(module)
        vars(copy)["forward"] = forwards[module]
        return copy
    children = {
        name: child if child is None else _copied(child, forwards, done)
        for name, child in vars(module)["_modules"].items()
    }
    if any(child is not vars(module)["_modules"][name] for name, child in children.items()):
        done[module] = copy = _copy_of(module)
        vars(copy)["_modules"] = children
        return copy
    return module


def _copy_of(module: nn.Module) -> nn.Module:
    copy: nn.Module = object.__new__(type(module))
    vars(copy).update(vars(module))
    return copy
