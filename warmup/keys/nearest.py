"""Rows near a key: the nearest row to a miss, and GEMM winners that a wider search tries again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from warmup.core.rows import Family, Row, Winner
from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of

MOST_NEIGHBOURS: Final = 8


_SAME: Final = ("op", "dtype", "dtype_b", "a", "b", "a2", "b2", "out")


_SIZE_NAMES: Final = ("batch", "m", "n", "k")


def neighbours_of(
    key: str, rows: Mapping[str, Row], most: int = MOST_NEIGHBOURS
) -> tuple[Winner, ...]:
    """Return the template winners of the *rows* nearest to *key*, at most *most*, nearest first.

    Rows of the same op, dtypes and operand orders count. Near is near in size, batch, m, n and k,
    by ratio: twice as large is as far as half as large. Equal winners count once, and ties go to
    key order, so that the answer does not depend on the order of *rows*.

    Raises:
        ProblemError: *key* is not a GEMM key.
    """
    asked = GEMM.ingredients(key)
    near: list[tuple[float, str]] = []
    for other, row in rows.items():
        if row.winner.family is Family.TEMPLATE and kind_of(other) is GEMM:
            found = GEMM.ingredients(other)
            if all(_plain(found.get(name)) == _plain(asked.get(name)) for name in _SAME):
                near.append((_distance(found, asked), other))
    winners = dict.fromkeys(rows[other].winner for _, other in sorted(near))
    return tuple(winners)[:most]


def _plain(value: str | None) -> str | None:
    """Return an ingredient without its strides."""
    return None if value is None else value.partition("/")[0].partition("@")[0]


def _distance(found: Mapping[str, str], asked: Mapping[str, str]) -> float:
    pairs = ((_low(found.get(name, "1")), _low(asked.get(name, "1"))) for name in _SIZE_NAMES)
    return round(sum(abs(math.log(one / other)) for one, other in pairs), 9)


def _low(size: str) -> int:
    return max(int(size.partition("..")[0]), 1)


def differing(row: dict[str, str], asked: dict[str, str]) -> tuple[str, ...]:
    """Return ``name: row X, here Y`` for each ingredient in which two problems differ."""
    names = [*asked, *(name for name in row if name not in asked)]
    return tuple(
        f"{name}: row {row.get(name, 'absent')}, here {asked.get(name, 'absent')}"
        for name in names
        if row.get(name) != asked.get(name)
    )


def nearest(key: str, rows: Iterable[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the row nearest to *key*, and the ingredients in which the two differ.

    Rows of the kind of *key* count whose first words, `Kind.fixed` of them, are those of *key*:
    its op or kernel. The nearest differs in the fewest ingredients. Ties go to the closest
    `Kind.nearest_by`, then to key order, so that the answer is the same in every process. Returns
    ``(None, ())`` when no row counts.
    """
    kind = kind_of(key)
    asked = kind.ingredients(key)
    start = "".join(f"{word} " for word in key.split(" ", kind.fixed)[: kind.fixed])
    best: tuple[tuple[int, int, str], str, tuple[str, ...]] | None = None
    for row in rows:
        if not row.startswith(start):
            continue
        found = kind.ingredients(row)
        differs = differing(found, asked)
        distance = sum(
            abs(_low_of(found[name]) - _low_of(asked[name]))
            for name in kind.nearest_by
            if name in found and name in asked
        )
        rank = (len(differs), distance, row)
        if best is None or rank < best[0]:
            best = (rank, row, differs)
    return (None, ()) if best is None else (best[1], best[2])


def natural_order(key: str) -> tuple[str | tuple[int, str], ...]:
    """Return a sort key that puts ``m=16`` before ``m=128``, for any text."""
    parts = re.split(r"0*([0-9]+)", key)  # text and digits in turn
    return tuple((len(part), part) if i % 2 else part for i, part in enumerate(parts))


def _low_of(size: str) -> int:
    return int(size.partition("..")[0])
