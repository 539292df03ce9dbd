"""`ModuleWatch`: notices changes of modules and of their weights, for about 1 us a layer.

Attributes, hooks, children and replaced tensors are noticed by the versions of the dicts that hold
them, which dynamo's guards compare in C++; items of lists, attributes of classes and globals that
guards read by their identity; ``p.data = ...`` and ``model.to(...)`` by what dynamo checks of a
tensor, also in C++. Where a version differs, the values are compared: what was set and
set back, as by ``model.train()`` and ``model.eval()``, is no change. Weights that are changed in
place, as by ``load_state_dict``, need no notice where the artifacts read them in each call; frozen
weights were copied, so their versions and addresses are compared.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch._C._dynamo.guards import RootGuardManager, TensorGuards
from torch._dynamo.guards import GuardManagerType
from torch.utils.hooks import RemovableHandle

from warmup.inductor.layers.reads import ReadObjects

_DICTS: Final = "dicts"
_version: Final = operator.attrgetter("_version")
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")


class ModuleWatch:
    """Watches *modules*, other objects that guards *read*, and *tensors* that a graph reads.

    With *has_addresses*, tensors whose memory moves are noticed too, as a CUDA graph needs. A hook
    is noticed when it is registered; what is put into a module's dict of hooks by hand is not.
    *frozen* are tensors whose values are part of what was compiled: writing into them, or moving
    their memory, is a change too. Writing into ``tensor.data`` is not noticed.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        read: ReadObjects,
        tensors: Sequence[torch.Tensor],
        frozen: Sequence[torch.Tensor] = (),
        *,
        has_addresses: bool,
    ) -> None:
        self._hooks_made = RemovableHandle.next_id  # in this process: counted by torch
        watched = [each for module in modules for each in _watched_dicts(module)]
        hooks = [vars(module)[name] for module in modules for name in _HOOKS]
        self._empty = [each for each in hooks if not each]
        watched += [each for each in hooks if each]
        own = {id(each): each for each in watched}
        self._dicts = {_DICTS: [*(own | read.dicts).values()]}
        self._kept = read.kept_values()
        self._versions = _versions_of(self._dicts[_DICTS])
        self._values = [dict(each) for each in self._dicts[_DICTS]]
        self._tensors: list[Any] = [*{id(tensor): tensor for tensor in tensors}.values()]
        self._layouts = TensorGuards(
            *self._tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        self._addresses: list[int] | None = None
        if has_addresses:
            self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._frozen = [*{id(tensor): tensor for tensor in frozen}.values()]
        self._contents = _contents_of(self._frozen)

    def is_same(self) -> bool:
        """Whether everything is as it was when the watch was made."""
        if not self._has_no_new_hooks():
            return False
        if not (self._versions.check(self._dicts) or self._has_same_values()):
            return False
        if not (self._kept.is_same() and self._layouts.check(*self._tensors)):
            return False
        if self._frozen and _contents_of(self._frozen) != self._contents:
            return False
        if self._addresses is None:
            return True
        return [*map(torch.Tensor.data_ptr, self._tensors)] == self._addresses

    def _has_no_new_hooks(self) -> bool:
        """Whether all modules without hooks have none; looked at where torch has made a hook."""
        made = RemovableHandle.next_id
        if made != self._hooks_made:
            if any(self._empty):
                return False
            self._hooks_made = made
        return True

    def _has_same_values(self) -> bool:
        """Whether all dicts have their values from before; their versions of now count then."""
        versions = _versions_of(self._dicts[_DICTS])  # read first: a later change has a later one
        for watched, before in zip(self._dicts[_DICTS], self._values, strict=True):
            now = dict(watched)
            if [*now] != [*before] or not all(map(operator.is_, now.values(), before.values())):
                return False
        self._versions = versions
        return True


def _watched_dicts(module: nn.Module) -> Iterator[dict[str, Any]]:
    own = vars(module)
    yield own
    yield from (own[name] for name in ("_parameters", "_buffers", "_modules") if own[name])


def _contents_of(tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
    """Return the addresses of *tensors*, and how often each was written."""
    return [*map(torch.Tensor.data_ptr, tensors)], [*map(_version, tensors)]


def _versions_of(dicts: list[dict[str, Any]]) -> Any:
    root: Any = RootGuardManager()
    kind = GuardManagerType.GUARD_MANAGER
    every = root.dict_getitem_manager(
        key=_DICTS, source=_DICTS, example_value=dicts, guard_manager_enum=kind
    )
    for index, watched in enumerate(dicts):
        place = f"{_DICTS}[{index}]"
        guard = every.list_getitem_manager(
            key=index, source=place, example_value=watched, guard_manager_enum=kind
        )
        guard.add_dict_version_guard(watched, [place], None)
    return root
