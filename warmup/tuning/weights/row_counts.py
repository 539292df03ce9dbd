"""`count_rows`: how many rows of activations each group of a model gets in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from warmup.models.padding.groups import Group


def count_rows(
    model: nn.Module, groups: Iterable[Group], call: Callable[[], object]
) -> dict[Group, tuple[int, ...]]:
    """Return the numbers of rows of each group's activations while *call* runs *model*, ascending.

    Rows are those of the activation as a matrix, all leading dims together. *call* runs once,
    without gradients, and should call the model uncompiled: a compiled graph skips the hooks of
    its modules. A group that was not called has no numbers.
    """
    counts: dict[Group, set[int]] = {group: set() for group in groups}

    def make_hook(group: Group) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            activation = args[0] if args else kwargs["input"]
            counts[group].add(activation.numel() // activation.shape[-1])

        return note

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for group in counts:
            linear = model.get_submodule(group.names[0])
            hook = linear.register_forward_pre_hook(make_hook(group), with_kwargs=True)
            hooks.callback(hook.remove)
        call()
    return {group: tuple(sorted(rows)) for group, rows in counts.items()}
