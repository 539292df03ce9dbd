"""`CallState`: tensors that a call of a model writes, put back before the model is called again.

A model may write its buffers or its inputs: a position, a cache, a normalised input. Outputs of two
runs can be compared where both began from the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class NotedTensor:
    """A tensor before a call, and its version, which each write in place raises.

    A call may put another tensor into the ``attribute`` of the module ``holder``; that of an input,
    None, stays.
    """

    name: str
    tensor: torch.Tensor
    version: int
    holder: nn.Module | None = None
    attribute: str = ""

    @classmethod
    def of(
        cls, name: str, tensor: torch.Tensor, holder: nn.Module | None = None, attribute: str = ""
    ) -> NotedTensor:
        """Return *tensor* with the version that it has now."""
        return cls(name, tensor, tensor._version, holder, attribute)  # noqa: SLF001  torch's own name of the count of writes

    @property
    def current(self) -> Any:
        """What is in the tensor's place now."""
        return self.tensor if self.holder is None else getattr(self.holder, self.attribute, None)

    @property
    def is_written(self) -> bool:
        """Whether the tensor was written, or another put in its place."""
        return self.current is not self.tensor or self.tensor._version != self.version  # noqa: SLF001  as above

    def put_back(self, value: torch.Tensor) -> None:
        """Have the tensor in its place again, with the elements of *value*."""
        if self.holder is not None and self.current is not self.tensor:
            setattr(self.holder, self.attribute, self.tensor)
        with torch.no_grad():
            self.tensor.copy_(value)


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

    _kept: list[tuple[NotedTensor, torch.Tensor]] = field(default_factory=list)
    _plain: dict[str, tuple[nn.Module, str, object]] = field(default_factory=dict)

    def keep_plain(self, module: nn.Module) -> None:
        """Keep the numbers, texts and flags that are attributes of *module* and those within."""
        self._plain = {
            f"{path}.{name}".removeprefix("."): (each, name, value)
            for path, each in module.named_modules()
            for name, value in vars(each).items()
            if isinstance(value, (int, float, str))
        }

    def changed_plain(self) -> list[str]:
        """Return those of `keep_plain` that calls have changed since, as ``step (1, then 2)``."""
        return [
            f"{name} ({before}, then {now})"
            for name, (module, attribute, before) in self._plain.items()
            if (now := getattr(module, attribute, None)) is not before and now != before
        ]

    @property
    def is_empty(self) -> bool:
        """Whether calls write nothing."""
        return not self._kept

    def keep_written(self, noted: Iterable[NotedTensor]) -> tuple[str, ...]:
        """Keep the values that the written ones of *noted* have now; return their names.

        What was kept before is forgotten.
        """
        changed = [one for one in noted if one.is_written]
        self._kept = [
            (NotedTensor.of(one.name, now, one.holder, one.attribute), now.detach().clone())
            for one in changed
            if isinstance(now := one.current, torch.Tensor)
        ]
        return written(changed)

    def restore(self) -> None:
        """Give every tensor that calls write the value that was kept."""
        for one, value in self._kept:
            one.put_back(value)

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
                holder, _, attribute = name.rpartition(".")
                place = module.get_submodule(holder), attribute
                yield NotedTensor.of(f"{kind} {name}", tensor, *place)
    for args, kwargs in calls:
        named = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
        for argument, value in named.items():
            for leaf in torch.utils._pytree.tree_leaves(value):  # noqa: SLF001  as above
                if isinstance(leaf, torch.Tensor) and not leaf.is_inference():
                    yield NotedTensor.of(f"input {argument}", leaf)
