"""`Tree`: which of a few configs to take for a GEMM, by its sizes; each leaf has its evidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.prediction.features import GemmSizes
from warmup.prediction.greedy_growth import GrownLeaves, grow_greedily

MAX_LEAVES: Final = 64
LEAF_FEATURES: Final = ("batch", "m", "n", "k", "area", "intensity", "unaligned", "bytes")
_LEAST_IN_LEAF: Final = 5
_LEAST_GAIN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class LeafEvidence:
    """What a leaf's choices were worth on held-out problems.

    ``regret`` is the geometric mean of the chosen time over the best time, ``worst`` the largest,
    ``bound`` what a predicted gain over the library is multiplied with for its lower bound.
    """

    problems: int
    regret: float
    worst: float
    bound: float


@dataclass(frozen=True, slots=True)
class Leaf:
    """Problems that take the config number *config*; ``evidence`` is None before it is held out."""

    config: int
    problems: int
    evidence: LeafEvidence | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """Problems whose *feature*, a number in `LEAF_FEATURES`, is at most *limit*, and the others."""

    feature: int
    limit: float
    low: Fork | Leaf
    high: Fork | Leaf


Tree = Fork | Leaf


def features_of(sizes: GemmSizes) -> tuple[float, ...]:
    """Return the values of `LEAF_FEATURES` of *sizes*, all sizes as binary logarithms."""
    batch, m, n, k = sizes.logs
    moved = sizes.m * sizes.k + sizes.k * sizes.n + sizes.m * sizes.n
    intensity = math.log2(sizes.m * sizes.n * sizes.k / moved)
    unaligned = 2.0 * (not sizes.is_aligned) + (not sizes.is_out_aligned)
    return batch, m, n, k, batch + m + n, intensity, unaligned, float(sizes.item_bytes)


def leaf_of(tree: Tree, features: Sequence[float]) -> Leaf:
    """Return the leaf of *tree* in which *features* end."""
    while isinstance(tree, Fork):
        tree = tree.low if features[tree.feature] <= tree.limit else tree.high
    return tree


def leaves_of(tree: Tree) -> Iterator[Leaf]:
    """Yield the leaves of *tree* from low to high."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from leaves_of(tree.low)
        yield from leaves_of(tree.high)


def grow_tree(features: Sequence[Sequence[float]], losses: Sequence[Sequence[float]]) -> Tree:
    """Return the tree whose leaves' configs have the smallest sum of *losses*, grown greedily.

    ``losses[i][j]`` is what config j costs at problem i. A leaf has at least five problems. Without
    configs the tree is one leaf.
    """
    if not any(losses):
        return Leaf(0, len(features))
    grown = grow_greedily(
        features,
        lambda members: _best_split(members, features, losses),
        most_leaves=MAX_LEAVES,
        least_gain=_LEAST_GAIN,
    )
    return _assembled(0, grown, losses)


def _assembled(node: int, grown: GrownLeaves, losses: Sequence[Sequence[float]]) -> Tree:
    if node in grown.forks:
        low, high = (_assembled(child, grown, losses) for child in (2 * node + 1, 2 * node + 2))
        return Fork(*grown.forks[node], low, high)
    members = grown.members[node]
    totals = [sum(column) for column in zip(*(losses[i] for i in members), strict=True)]
    return Leaf(min(range(len(totals)), key=totals.__getitem__), len(members))


def _best_split(
    members: Sequence[int],
    features: Sequence[Sequence[float]],
    losses: Sequence[Sequence[float]],
) -> tuple[float, int, float]:
    """Return by how much the best split lowers the loss, its feature and its limit."""
    whole = [sum(column) for column in zip(*(losses[i] for i in members), strict=True)]
    best = (0.0, 0, 0.0)
    for feature in range(len(features[0])):
        ordered = sorted(members, key=lambda i: (features[i][feature], i))
        low = [0.0] * len(whole)
        for count, (i, after) in enumerate(itertools.pairwise(ordered), start=1):
            low = [a + b for a, b in zip(low, losses[i], strict=True)]
            here, there = features[i][feature], features[after][feature]
            if here == there or min(count, len(ordered) - count) < _LEAST_IN_LEAF:
                continue
            high = min(a - b for a, b in zip(whole, low, strict=True))
            gain = min(whole) - min(low) - high
            if gain > best[0] + _LEAST_GAIN:
                best = (gain, feature, round((here + there) / 2, 4))
    return best
