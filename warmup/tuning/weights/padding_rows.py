"""`padding_keys`: the rows of a table that pad given groups of weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from warmup.core.rows import Row
from warmup.keys.registry import kind_of
from warmup.keys.weight import WEIGHT, Structure, features_of, parse_weight


def padding_keys(rows: Mapping[str, Row], structures: Collection[Structure]) -> list[str]:
    """Return the keys of those *rows* that pad one of *structures* to more features.

    Raises:
        ProblemError: a row has no winner that such a structure can have.
    """
    about = {
        key: structure
        for key in rows
        if kind_of(key) is WEIGHT and (structure := parse_weight(key)[0]) in structures
    }
    return [
        key
        for key, structure in about.items()
        if features_of(structure, rows[key].winner) != structure.features
    ]
