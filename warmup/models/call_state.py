"""`CallState`: tensors that a call of a model writes, put back before the model is called again.

A model may write its buffers or its inputs: a position, a cache, a normalised input. Outputs of two
runs can be compared where both began from the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class NotedTensor:
    """A tensor before a call, and its version, which each write in place raises.

    ``place`` is where a module keeps it, None for an input: a call may put another tensor there.
    """

    name: str
    tensor: torch.Tensor
    version: int
    place: Callable[[], Any] | None = None

    @property
    def is_written(self) -> bool:
        """Whether the tensor was written, or another put in its place."""
        if self.place is not None and self.place() is not self.tensor:
            return True
        return _version_of(self.tensor) != self.version


def noted_tensors(
    module: nn.Module, calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]
) -> tuple[NotedTensor, ...]:
    """Return the parameters and buffers of *module*, and the tensors in the arguments of *calls*.

    Tensors made in inference mode, whose writes nobody counts, are left out.
    """
    return tuple(_noted(module, calls))


def written(noted: Iterable[NotedTensor]) -> tuple[str, ...]:
    """Return the names of those of *noted* that were written since, such as ``buffer pos``."""
    return tuple(dict.fromkeys(one.name for one in noted if one.is_written))


@dataclass(slots=True)
class CallState:
    """The tensors that calls of a model were seen to write, each with the value to begin from."""

    _kept: list[tuple[nn.Module | None, NotedTensor, torch.Tensor]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether calls write nothing."""
        return not self._kept

    def keep_written(self, module: nn.Module, noted: Iterable[NotedTensor]) -> tuple[str, ...]:
        """Keep the values that the written ones of *noted* have now; return their names.

        What was kept before is forgotten.
        """
        changed = [one for one in noted if one.is_written]
        self._kept = []
        for one in changed:
            current = one.tensor if one.place is None else one.place()
            if isinstance(current, torch.Tensor):
                owner = None if one.place is None else module
                now = NotedTensor(one.name, current, _version_of(current), one.place)
                self._kept.append((owner, now, current.detach().clone()))
        return tuple(dict.fromkeys(one.name for one in changed))

    def restore(self) -> None:
        """Give every tensor that calls write the value that was kept."""
        for module, one, value in self._kept:
            if module is not None and one.is_written:
                _put(module, one.name, one.tensor)
            with torch.no_grad():
                one.tensor.copy_(value)

    def detached(self, output: Any) -> Any:
        """Return *output*, as a copy where calls write tensors: it may be one of them."""
        if self.is_empty:
            return output
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, output)  # noqa: SLF001  no public name


def _noted(
    module: nn.Module, calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]
) -> Iterator[NotedTensor]:
    own = (("parameter", module.named_parameters()), ("buffer", module.named_buffers()))
    for kind, tensors in own:
        for name, tensor in tensors:
            if not tensor.is_inference():
                place = _place_of(module, name)
                yield NotedTensor(f"{kind} {name}", tensor, _version_of(tensor), place)
    for args, kwargs in calls:
        named = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
        for argument, value in named.items():
            for leaf in torch.utils._pytree.tree_leaves(value):  # noqa: SLF001  as above
                if isinstance(leaf, torch.Tensor) and not leaf.is_inference():
                    yield NotedTensor(f"input {argument}", leaf, _version_of(leaf))


def _place_of(module: nn.Module, name: str) -> Callable[[], Any]:
    owner, _, attribute = name.rpartition(".")
    holder = module.get_submodule(owner)
    return lambda: getattr(holder, attribute, None)


def _put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    owner, _, attribute = name.partition(" ")[2].rpartition(".")
    setattr(module.get_submodule(owner), attribute, tensor)


def _version_of(tensor: torch.Tensor) -> int:
    return tensor._version  # noqa: SLF001  the counter of writes, torch's own name for it
