"""`PadModel`: a small tree that says whether to pad, with leaves that are unsure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.prediction.pad.estimate import USUAL_RATES, GemmRates
from warmup.prediction.pad.features import PAD_FEATURES, PadSizes

MIN_SAMPLES: Final = 200
MIN_OF_CATEGORY: Final = 40  # samples, below which a category is unsure
MAX_PAD_LEAVES: Final = 64
WORST_LOSS: Final = 1.05  # time over the best time that a sure leaf's samples may have


class PadAnswer(StrEnum):
    """What a leaf says: a winner of the row kind ``pad``, or that it does not know."""

    AS_IS = "as_is"
    PADDED = "padded"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class PadLeaf:
    """The answer for GEMMs that end here, and its evidence.

    ``grown`` counts the samples that the leaf was grown from, ``confirmed`` those that it was then
    judged on. ``gain`` is the geometric mean, on the latter, of the time as it is over the time of
    the answer, and ``bound`` the smallest; both are 1 for ``as_is`` and ``unsure``.
    """

    answer: PadAnswer
    grown: int
    confirmed: int
    gain: float = 1.0
    bound: float = 1.0


@dataclass(frozen=True, slots=True)
class PadFork:
    """GEMMs whose *feature*, a number in `PAD_FEATURES`, is at most *limit*, and the others."""

    feature: int
    limit: float
    low: PadFork | PadLeaf
    high: PadFork | PadLeaf


PadTree = PadFork | PadLeaf


@dataclass(frozen=True, slots=True)
class PadCategory:
    """How many samples of a category there are, and the range of their m, n and k."""

    samples: int
    low: tuple[int, int, int]
    high: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PadModel:
    """What the section ``pad`` of a model file holds.

    ``method`` is how calls were launched and what the L2 held; ``categories`` are by op, dtype and
    float32 precision; ``rates`` are those of the device, for the estimated gain.
    """

    method: str
    samples: int
    categories: Mapping[str, PadCategory]
    tree: PadTree
    rates: GemmRates = USUAL_RATES

    @property
    def too_little(self) -> str | None:
        """Why this model must not be used: trained on too little; None where it may be."""
        if self.samples < MIN_SAMPLES:
            return f"pad decisions trained on {self.samples} samples, fewer than {MIN_SAMPLES}"
        return None

    def unsure(self, sizes: PadSizes) -> str | None:
        """Return why *sizes* are outside of what was sampled; None where they are inside."""
        category = self.categories.get(sizes.category)
        if category is None or category.samples < MIN_OF_CATEGORY:
            return f"fewer than {MIN_OF_CATEGORY} GEMMs of the category {sizes.category} sampled"
        values = (sizes.m, sizes.n, sizes.k)
        for name, value, low, high in zip("mnk", values, category.low, category.high, strict=True):
            if not low <= value <= high:
                return f"{name} is outside of the sampled range"
        return None

    def leaf(self, sizes: PadSizes) -> PadLeaf | None:
        """Return the leaf in which *sizes* end; None outside of what was sampled."""
        if self.unsure(sizes) is not None:
            return None
        return pad_leaf(self.tree, sizes.features(self.rates))

    def answer(self, sizes: PadSizes) -> PadAnswer:
        """Return whether to pad, or that this is not known."""
        leaf = self.leaf(sizes)
        return PadAnswer.UNSURE if leaf is None else leaf.answer


def pad_leaf(tree: PadTree, features: Sequence[float]) -> PadLeaf:
    """Return the leaf of *tree* in which a GEMM of such *features* ends."""
    while isinstance(tree, PadFork):
        tree = tree.low if features[tree.feature] <= tree.limit else tree.high
    return tree


def pad_leaves_of(tree: PadTree) -> Iterator[PadLeaf]:
    """Yield the leaves of *tree* from low to high."""
    if isinstance(tree, PadLeaf):
        yield tree
    else:
        yield from pad_leaves_of(tree.low)
        yield from pad_leaves_of(tree.high)


def feature_name(fork: PadFork) -> str:
    """Return the name of the feature that *fork* asks for."""
    return PAD_FEATURES[fork.feature]
