"""The section ``pad`` of a model file: a `PadModel` as JSON values, read without trust."""

from __future__ import annotations

from typing import Any, Final

from warmup.core.json_node import Node
from warmup.prediction.pad.estimate import ALIGNMENTS, UNITS, USUAL_RATES, GemmRates
from warmup.prediction.pad.features import PAD_FEATURES
from warmup.prediction.pad.pad_model import (
    MAX_PAD_LEAVES,
    PadAnswer,
    PadCategory,
    PadFork,
    PadLeaf,
    PadModel,
    PadTree,
    feature_name,
)

PAD_SECTION: Final = "pad"
_PAD_FIELDS: Final = frozenset({"method", "samples", "categories", "tree"})
_LATER_FIELDS: Final = frozenset({"rates"})  # absent: the usual rates, which all trees had before
_MOST_SAMPLES: Final = 1_000_000
_MOST_CATEGORIES: Final = 64
_LARGEST_DIM: Final = 2**40
_LARGEST_LIMIT: Final = 1e6
_LARGEST_GAIN: Final = 1e6
_LARGEST_RATE: Final = 1e12
_FORK_PARTS: Final = 4
_LEAF_PARTS: Final = 5


def pad_model_to_json(model: PadModel) -> dict[str, Any]:
    """Return *model* as JSON values, the same for the same model."""
    return {
        "method": model.method,
        "samples": model.samples,
        "categories": {
            name: [each.samples, list(each.low), list(each.high)]
            for name, each in sorted(model.categories.items())
        },
        "rates": {unit: list(getattr(model.rates, unit)) for unit in UNITS},
        "tree": _tree_to_json(model.tree),
    }


def read_pad_model(node: Node) -> PadModel:
    """Return the pad model in *node*.

    Raises:
        TableFormatError: *node* is damaged; the error has the JSON pointer.
    """
    members = node.members(_PAD_FIELDS, optional=_LATER_FIELDS)
    categories = {name: _read_category(each) for name, each in members["categories"].items()}
    if len(categories) > _MOST_CATEGORIES:
        members["categories"].fail(f"expected at most {_MOST_CATEGORIES} categories")
    return PadModel(
        method=members["method"].string(),
        samples=members["samples"].integer(0, _MOST_SAMPLES),
        categories=categories,
        rates=_read_rates(members["rates"]) if "rates" in members else USUAL_RATES,
        tree=_read_tree(members["tree"], [], 1),
    )


def _tree_to_json(tree: PadTree) -> list[Any]:
    if isinstance(tree, PadFork):
        sides = [_tree_to_json(side) for side in (tree.low, tree.high)]
        return [feature_name(tree), tree.limit, *sides]
    return [tree.answer.value, tree.grown, tree.confirmed, tree.gain, tree.bound]


def _read_category(node: Node) -> PadCategory:
    parts = node.elements(3)
    if len(parts) != 3:  # noqa: PLR2004  a count and two ends
        node.fail("expected a count, the smallest and the largest sizes")
    low, high = (_read_sizes(part) for part in parts[1:])
    return PadCategory(parts[0].integer(1, _MOST_SAMPLES), low, high)


def _read_sizes(node: Node) -> tuple[int, int, int]:
    sizes = [part.integer(1, _LARGEST_DIM) for part in node.elements(3)]
    if len(sizes) != 3:  # noqa: PLR2004  m, n and k
        node.fail("expected m, n and k")
    return sizes[0], sizes[1], sizes[2]


def _read_rates(node: Node) -> GemmRates:
    members = node.members(frozenset(UNITS))
    return GemmRates(**{unit: _read_unit(each) for unit, each in members.items()})


def _read_unit(node: Node) -> tuple[float, ...]:
    rates = tuple(part.number(1, _LARGEST_RATE) for part in node.elements(ALIGNMENTS))
    if len(rates) != ALIGNMENTS:
        node.fail(f"expected the rates at {ALIGNMENTS} alignments")
    return rates


def _read_tree(node: Node, leaves: list[PadLeaf], depth: int) -> PadTree:
    """Return the tree in *node*, whose leaves are added to *leaves*: at most 64."""
    parts = node.elements(_LEAF_PARTS)
    if depth > MAX_PAD_LEAVES:  # no tree of so few leaves is as deep
        node.fail(f"expected at most {MAX_PAD_LEAVES} leaves")
    if len(parts) == _FORK_PARTS:
        name = parts[0].string()
        if name not in PAD_FEATURES:
            parts[0].fail(f"expected one of {', '.join(PAD_FEATURES)}")
        return PadFork(
            PAD_FEATURES.index(name),
            parts[1].number(-_LARGEST_LIMIT, _LARGEST_LIMIT),
            _read_tree(parts[2], leaves, depth + 1),
            _read_tree(parts[3], leaves, depth + 1),
        )
    if len(parts) != _LEAF_PARTS or len(leaves) == MAX_PAD_LEAVES:
        node.fail(f"expected a fork or one of at most {MAX_PAD_LEAVES} leaves")
    word = parts[0].string()
    if word not in set(PadAnswer):
        parts[0].fail(f"expected one of {', '.join(PadAnswer)}")
    leaf = PadLeaf(
        answer=PadAnswer(word),
        grown=parts[1].integer(0, _MOST_SAMPLES),
        confirmed=parts[2].integer(0, _MOST_SAMPLES),
        gain=parts[3].number(0, _LARGEST_GAIN),
        bound=parts[4].number(0, _LARGEST_GAIN),
    )
    leaves.append(leaf)
    return leaf
