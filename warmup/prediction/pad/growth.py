"""`grow_pads`: the forks of a pad tree, grown greedily from what padding gains at each sample.

The leaf that is split next is the one whose split makes leaves least mixed. A leaf is mixed by what
padding gains at some of its samples and loses at others: the Gini impurity of the two, weighted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LEAST_DECREASE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Bough:
    """Samples of a leaf that may still be split: their numbers, and the best split."""

    members: tuple[int, ...]
    decrease: float
    feature: int
    limit: float


@dataclass(frozen=True, slots=True)
class GrownFork:
    """Samples whose *feature* is at most *limit*, and the others; None is a leaf."""

    feature: int
    limit: float
    low: GrownFork | None
    high: GrownFork | None


def grow_pads(
    features: Sequence[Sequence[float]],
    gains: Sequence[float],
    *,
    most_leaves: int,
    least_in_leaf: int,
) -> GrownFork | None:
    """Return the forks of a tree; None where it is a single leaf.

    ``gains`` are what padding gains at each sample, negative where it loses. A leaf has at least
    *least_in_leaf* samples.
    """

    def bough(members: Sequence[int]) -> Bough:
        return Bough(tuple(members), *_best_division(members, features, gains, least_in_leaf))

    boughs: dict[int, Bough] = {0: bough(range(len(features)))}
    forks: dict[int, tuple[int, float]] = {}
    while len(boughs) < most_leaves:
        # Numbers are paths: the children of node i are 2i + 1 and 2i + 2.
        node = max(boughs, key=lambda each: (boughs[each].decrease, -each))
        split = boughs[node]
        if split.decrease < _LEAST_DECREASE:
            break
        forks[node] = split.feature, split.limit
        del boughs[node]
        for child, is_low in ((2 * node + 1, True), (2 * node + 2, False)):
            boughs[child] = bough(
                [i for i in split.members if (features[i][split.feature] <= split.limit) is is_low]
            )
    return _assemble(0, forks)


def _assemble(node: int, forks: dict[int, tuple[int, float]]) -> GrownFork | None:
    if node not in forks:
        return None
    return GrownFork(
        *forks[node], *(_assemble(child, forks) for child in (2 * node + 1, 2 * node + 2))
    )


def _mixed(gained: float, lost: float) -> float:
    return gained * lost / (gained + lost) if gained and lost else 0.0


def _best_division(
    members: Sequence[int],
    features: Sequence[Sequence[float]],
    gains: Sequence[float],
    least_in_leaf: int,
) -> tuple[float, int, float]:
    """Return by how much the best split lowers the impurity, its feature and its limit."""
    up = sum(max(gains[i], 0.0) for i in members)
    down = sum(max(-gains[i], 0.0) for i in members)
    whole, best = _mixed(up, down), (0.0, 0, 0.0)
    if not whole:
        return best
    for feature in range(len(features[0])):
        ordered = sorted(members, key=lambda i: (features[i][feature], i))
        low_up = low_down = 0.0
        for count, (i, after) in enumerate(itertools.pairwise(ordered), start=1):
            low_up += max(gains[i], 0.0)
            low_down += max(-gains[i], 0.0)
            here, there = features[i][feature], features[after][feature]
            if here == there or min(count, len(ordered) - count) < least_in_leaf:
                continue
            high = _mixed(max(up - low_up, 0.0), max(down - low_down, 0.0))
            decrease = whole - _mixed(low_up, low_down) - high
            if decrease > best[0] + _LEAST_DECREASE:
                best = (decrease, feature, round((here + there) / 2, 4))
    return best
