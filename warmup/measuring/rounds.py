"""`run_rounds`: batches timed in turn, once per round, so that a drift affects all alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from warmup.core.samples import Samples
from warmup.core.turns import in_turn
from warmup.measuring.clock import Batch

_K = TypeVar("_K", bound=Hashable)


def run_rounds(
    batches: Mapping[_K, Batch], rounds: int, before_each: Callable[[_K], None] | None = None
) -> dict[_K, Samples]:
    """Return *rounds* times of each of *batches*.

    The batches are timed in turn, and each round starts with the next batch. *before_each* is
    called with the name of a batch just before it is timed.
    """
    names = list(batches)
    times: dict[_K, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in in_turn(names, number):
            if before_each is not None:
                before_each(name)
            times[name].append(batches[name].time())
    return {name: Samples(tuple(taken)) for name, taken in times.items()}
