"""`grow_pads`: the forks of a pad tree, grown greedily from what padding gains at each sample.

The leaf that is split next is the one whose split makes leaves least mixed. A leaf is mixed by what
padding gains at some of its samples and loses at others: the Gini impurity of the two, weighted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.prediction.greedy_growth import grow_greedily

_LEAST_DECREASE: Final = 1e-9


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
    grown = grow_greedily(
        features,
        lambda members: _best_division(members, features, gains, least_in_leaf),
        most_leaves=most_leaves,
        least_gain=_LEAST_DECREASE,
    )
    return _assemble(0, grown.forks)


def _assemble(node: int, forks: Mapping[int, tuple[int, float]]) -> GrownFork | None:
    if node not in forks:
        return None
    low, high = (_assemble(child, forks) for child in (2 * node + 1, 2 * node + 2))
    return GrownFork(*forks[node], low, high)


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
