"""`find_groups`: the repeated layers of a model, in groups that may share an artifact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from warmup.models.padding.tracing import is_hooked

_CONTAINERS: Final = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one container with the same modules and the same tensors, by name in the model."""

    layers: dict[str, nn.Module]


def find_groups(model: nn.Module) -> tuple[LayerGroup, ...]:
    """Return the groups of repeated layers of *model*, the outermost ones, in order of their names.

    A layer is repeated if its `ModuleList` or `Sequential` has another one with the same classes,
    and with tensors of the same names, sizes, strides, dtypes and devices. A module without
    children is no layer: a single op gains nothing. Whether the layers of a group are equal is for
    `warmup.models.layer_proof` to prove.
    """
    return tuple(LayerGroup(layers) for layers in _groups(model, "", set()))


def _groups(
    module: nn.Module, prefix: str, visited: set[nn.Module]
) -> Iterator[dict[str, nn.Module]]:
    if module in visited:
        return
    visited.add(module)
    children = {
        f"{prefix}{name}": child
        for name, child in vars(module)["_modules"].items()
        if child is not None
    }
    taken: set[str] = set()
    if isinstance(module, _CONTAINERS):
        alike: dict[Any, dict[str, nn.Module]] = {}
        for name, child in children.items():
            if vars(child)["_modules"] and child not in visited:
                alike.setdefault(_structure(child), {})[name] = child
        for layers in alike.values():
            if len(set(layers.values())) > 1:
                taken |= layers.keys()
                visited |= set(layers.values())
                yield layers
    for name, child in children.items():
        if name not in taken:
            yield from _groups(child, f"{name}.", visited)


def _structure(layer: nn.Module) -> tuple[Any, ...]:
    modules = tuple((name, type(inner)) for name, inner in layer.named_modules())
    tensors = (
        *layer.named_parameters(remove_duplicate=False),
        *layer.named_buffers(remove_duplicate=False),
    )
    return modules, tuple(
        (name, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        for name, tensor in tensors
    )


def hooked_module(layer: nn.Module) -> str | None:
    """Return the name of a module inside of *layer* with hooks or a forward of its own, or None.

    Hooks of the layer itself run outside of its forward.
    """
    for name, inner in layer.named_modules():
        if inner is layer:
            if "forward" in vars(inner):
                return "the layer itself"
        elif is_hooked(inner):
            return str(name)
    return None
