"""Interleaving: every contender is timed once a round, so that a drift hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from warmup.core.samples import Samples
from warmup.core.turns import in_turn
from warmup.measuring.clock import Batch

_K = TypeVar("_K", bound=Hashable)


def run_rounds(
    batches: Mapping[_K, Batch], rounds: int, at: Callable[[_K], None] | None = None
) -> dict[_K, Samples]:
    """Return *rounds* times of each of *batches*, taken in turn; each round starts one further on.

    *at* is called with the name of a batch just before it is timed.
    """
    names = list(batches)
    times: dict[_K, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in in_turn(names, number):
            if at is not None:
                at(name)
            times[name].append(batches[name].time())
    return {name: Samples(tuple(found)) for name, found in times.items()}
