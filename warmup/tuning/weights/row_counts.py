"""How many rows the groups of a model are given in one call of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from warmup.models.padding.groups import Group


def rows_of(
    model: nn.Module, groups: Iterable[Group], call: Callable[[], object]
) -> dict[Group, tuple[int, ...]]:
    """Return the numbers of rows that each group was given while *call* ran *model*, ascending.

    Rows are those of the activation as a matrix. *call* is called once, without gradients. It
    should run the model uncompiled, since a compiled graph need not ask its modules. A group that
    was not called has none.
    """
    seen: dict[Group, set[int]] = {group: set() for group in groups}

    def watch(group: Group) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = args[0] if args else kwargs["input"]
            seen[group].add(given.numel() // given.shape[-1])

        return note

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for group in seen:
            linear = model.get_submodule(group.names[0])
            hook = linear.register_forward_pre_hook(watch(group), with_kwargs=True)
            hooks.callback(hook.remove)
        call()
    return {group: tuple(sorted(rows)) for group, rows in seen.items()}
