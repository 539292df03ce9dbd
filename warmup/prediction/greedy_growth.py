"""`grow_greedily`: splits samples into the leaves of a tree, the most promising leaf first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# By how much splitting these samples improves the tree, by which feature, and at which limit.
BestDivision = Callable[[Sequence[int]], tuple[float, int, float]]


@dataclass(frozen=True, slots=True)
class GrownLeaves:
    """The forks of a tree, each a feature and a limit, and the samples that end in its leaves.

    Keys are paths: the root is 0, and the children of node i are 2i + 1 and 2i + 2.
    """

    forks: dict[int, tuple[int, float]]
    members: dict[int, list[int]]


def grow_greedily(
    features: Sequence[Sequence[float]],
    best_division: BestDivision,
    *,
    most_leaves: int,
    least_gain: float,
) -> GrownLeaves:
    """Return a tree of at most *most_leaves* leaves over the samples with *features*.

    Samples whose feature is at most the limit of a fork are in its lower child. Growing ends where
    no division improves the tree by *least_gain*.
    """
    members = {0: list(range(len(features)))}
    best = {0: best_division(members[0])}
    forks: dict[int, tuple[int, float]] = {}
    while len(members) < most_leaves:
        node = max(members, key=lambda one: (best[one][0], -one))
        gain, feature, limit = best[node]
        if gain < least_gain:
            break
        forks[node] = feature, limit
        divided = members.pop(node)
        for child, is_low in ((2 * node + 1, True), (2 * node + 2, False)):
            members[child] = [i for i in divided if (features[i][feature] <= limit) is is_low]
            best[child] = best_division(members[child])
    return GrownLeaves(forks, members)
