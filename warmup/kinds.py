"""All row kinds, and what can be asked of any key. Floor 0: stdlib only.

A key says its kind: the first word is the kind's name, except that GEMM keys start with their op.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from warmup.kernel import LAUNCH
from warmup.kind import Kind
from warmup.padding import PAD
from warmup.problem import GEMM
from warmup.weight import WEIGHT

KINDS: Final = {kind.name: kind for kind in (GEMM, LAUNCH, PAD, WEIGHT)}


def kind_of(key: str) -> Kind:
    """Return the kind that *key* claims to be of; the rest of the key is not checked."""
    return KINDS.get(key.partition(" ")[0], GEMM)


def check_key(key: str) -> None:
    """Return when *key* is a key of the kind it claims.

    Raises:
        ProblemError: it is not.
    """
    kind_of(key).check(key)


def ingredients_of(key: str) -> dict[str, str]:
    """Return the named ingredients of *key*, in key order.

    Raises:
        ProblemError: *key* is not a key.
    """
    return kind_of(key).ingredients(key)


def differing(row: dict[str, str], asked: dict[str, str]) -> tuple[str, ...]:
    """Return ``name: row X, here Y`` for each ingredient in which two problems differ."""
    names = [*asked, *(name for name in row if name not in asked)]
    return tuple(
        f"{name}: row {row.get(name, 'absent')}, here {asked.get(name, 'absent')}"
        for name in names
        if row.get(name) != asked.get(name)
    )


def nearest(key: str, rows: Iterable[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the row of the same op or kernel with the fewest differing ingredients, and those.

    Ties go to the numerically closest size, then to key order, so that the answer is the same in
    every process. Returns ``(None, ())`` when no row is about the op or kernel of *key*.
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
        distance = sum(abs(_low(found[name]) - _low(asked[name])) for name in _sizes(found, asked))
        rank = (len(differs), distance, row)
        if best is None or rank < best[0]:
            best = (rank, row, differs)
    return (None, ()) if best is None else (best[1], best[2])


def natural_order(key: str) -> tuple[str | tuple[int, str], ...]:
    """Return a sort key that puts ``m=16`` before ``m=128``, for any text."""
    parts = re.split(r"0*([0-9]+)", key)  # text and digits in turn
    return tuple((len(part), part) if i % 2 else part for i, part in enumerate(parts))


def _sizes(found: dict[str, str], asked: dict[str, str]) -> list[str]:
    return [name for name in ("m", "x", "y") if name in found and name in asked]


def _low(size: str) -> int:
    return int(size.partition("..")[0])
