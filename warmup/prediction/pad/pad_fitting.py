"""`fit_pads`: a tree from samples, confirmed on samples that it was not grown from.

Three quarters of the sizes grow a tree. A leaf is sure of its answer where it has samples enough,
of both kinds, and the answer costs none of them more than 5 % over the better way. Two trees are
grown, one with the estimated gain among its features and one without, and the tree whose answers
gain more is kept: the estimate may mislead on a device whose memory is not as it assumes. The rates
that the estimate is made with are those of the growing samples.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from warmup.prediction.pad.features import PAD_FEATURES, PadSizes
from warmup.prediction.pad.growth import GrownFork, grow_pads
from warmup.prediction.pad.pad_model import (
    MAX_PAD_LEAVES,
    WORST_LOSS,
    PadAnswer,
    PadCategory,
    PadFork,
    PadLeaf,
    PadModel,
    PadTree,
    pad_leaf,
)
from warmup.prediction.pad.rates import fit_rates
from warmup.prediction.pad.samples import PadSample

LEAST_GROWN: Final = 8  # samples that a leaf is grown from
LEAST_CONFIRMED: Final = 4  # samples that a sure leaf is confirmed on
_DIVISIONS: Final = 4  # of which the first confirms
_CONFIRMING_PART: Final = 0
# With `estimated_gain`, which is the last feature, and without.
_FEATURE_COUNTS: Final = (len(PAD_FEATURES), len(PAD_FEATURES) - 1)
_MOST_GAIN: Final = math.log(2)  # of one sample, when the tree is grown

_Featured = tuple[PadSample, tuple[float, ...]]


def part_of(sizes: PadSizes, parts: int, salt: str) -> int:
    """Return in which of *parts* all samples of *sizes* are; *salt* names the division."""
    digest = hashlib.sha256(f"{salt} {sizes.text}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % parts


def fit_pads(samples: Sequence[PadSample], method: str) -> PadModel:
    """Return the pad model of *samples*, which were measured by *method*."""
    sized = [(one, one.sizes) for one in samples if one.sizes is not None]
    to_grow: list[tuple[PadSample, PadSizes]] = []
    to_confirm: list[tuple[PadSample, PadSizes]] = []
    for one, sizes in sized:
        is_confirming = part_of(sizes, _DIVISIONS, "confirm") == _CONFIRMING_PART
        (to_confirm if is_confirming else to_grow).append((one, sizes))
    rates = fit_rates(to_grow)
    growing, confirming = (
        [(one, sizes.features(rates)) for one, sizes in part] for part in (to_grow, to_confirm)
    )
    trees = [_grown(growing, confirming, features) for features in _FEATURE_COUNTS]
    return PadModel(
        method=method,
        samples=len(sized),
        categories=_categories(sizes for _, sizes in sized),
        tree=max(trees, key=lambda tree: _gained(tree, (*growing, *confirming))),
        rates=rates,
    )


def _grown(
    growing: Sequence[_Featured],
    confirming: Sequence[_Featured],
    features: int,
) -> PadTree:
    """Return the tree that asks for the first *features* alone."""
    forks = grow_pads(
        [values[:features] for _, values in growing],
        [_gain(one) for one, _ in growing],
        most_leaves=MAX_PAD_LEAVES,
        least_in_leaf=LEAST_GROWN,
    )
    return _merged(_judged(forks, growing, confirming))


def _gained(tree: PadTree, samples: Iterable[_Featured]) -> float:
    """Return the sum of logarithms of what the answers of *tree* gain over never padding."""
    return math.fsum(
        math.log(one.gain(pads=pad_leaf(tree, values).answer is PadAnswer.PADDED))
        for one, values in samples
    )


def _gain(one: PadSample) -> float:
    """Return the logarithm of what padding gains, cut where one sample would outweigh others."""
    return max(-_MOST_GAIN, min(_MOST_GAIN, math.log(one.gain(pads=True))))


def _categories(sizes: Iterable[PadSizes]) -> dict[str, PadCategory]:
    found: dict[str, list[PadSizes]] = defaultdict(list)
    for one in sizes:
        found[one.category].append(one)
    return {
        name: PadCategory(
            len(group),
            (min(s.m for s in group), min(s.n for s in group), min(s.k for s in group)),
            (max(s.m for s in group), max(s.n for s in group), max(s.k for s in group)),
        )
        for name, group in sorted(found.items())
    }


def _judged(
    forks: GrownFork | None,
    growing: Sequence[_Featured],
    confirming: Sequence[_Featured],
) -> PadTree:
    """Return the tree of *forks*: each leaf is judged on the samples that end there."""
    if forks is None:
        return _leaf([one for one, _ in growing], [one for one, _ in confirming])
    sides = []
    for is_low, side in ((True, forks.low), (False, forks.high)):
        parts = [
            [each for each in group if (each[1][forks.feature] <= forks.limit) is is_low]
            for group in (growing, confirming)
        ]
        sides.append(_judged(side, *parts))
    return PadFork(forks.feature, forks.limit, *sides)


def _leaf(grown: Sequence[PadSample], confirmed: Sequence[PadSample]) -> PadLeaf:
    pads = math.fsum(map(_gain, grown)) > 0
    worst = max(
        (one.time_us(pads=pads) / one.best_us for one in (*grown, *confirmed)), default=math.inf
    )
    is_enough = len(grown) >= LEAST_GROWN and len(confirmed) >= LEAST_CONFIRMED
    if not is_enough or worst > WORST_LOSS:
        return PadLeaf(answer=PadAnswer.UNSURE, grown=len(grown), confirmed=len(confirmed))
    gains = [one.gain(pads=pads) for one in confirmed]
    return PadLeaf(
        answer=PadAnswer.PADDED if pads else PadAnswer.AS_IS,
        grown=len(grown),
        confirmed=len(confirmed),
        gain=round(math.exp(math.fsum(map(math.log, gains)) / len(gains)), 4),
        bound=round(min(gains), 4),
    )


def _merged(tree: PadTree) -> PadTree:
    """Return *tree* with one unsure leaf in place of a fork between two."""
    if isinstance(tree, PadLeaf):
        return tree
    low, high = _merged(tree.low), _merged(tree.high)
    if not (isinstance(low, PadLeaf) and isinstance(high, PadLeaf)):
        return PadFork(tree.feature, tree.limit, low, high)
    if not low.answer is high.answer is PadAnswer.UNSURE:
        return PadFork(tree.feature, tree.limit, low, high)
    grown, confirmed = low.grown + high.grown, low.confirmed + high.confirmed
    return PadLeaf(answer=PadAnswer.UNSURE, grown=grown, confirmed=confirmed)
