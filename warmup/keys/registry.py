"""`KINDS`: the registry of row kinds, and functions for keys of any kind.

The first word of a key is the name of its kind, except that a GEMM key starts with its op.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from warmup.core.roofline import Work
from warmup.core.rows import Family, Row, Winner
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.grouped import GROUPED
from warmup.keys.kind import Kind, Linear
from warmup.keys.launch import AUTOTUNE, LAUNCH
from warmup.keys.pad import PAD, WEIGHT
from warmup.keys.reduction import REDUCTION, SPLIT

KINDS: Final = {
    kind.name: kind
    for kind in (GEMM, CONVOLUTION, GROUPED, LAUNCH, AUTOTUNE, PAD, REDUCTION, SPLIT, WEIGHT)
}


def kind_of(key: str) -> Kind:
    """Return the kind of *key* by its first word; the rest of the key is not checked."""
    return KINDS.get(key.partition(" ")[0], GEMM)


def covers(site: str) -> bool:
    """Return whether what is measured at *site* becomes rows of some kind."""
    return any(site in kind.sites for kind in KINDS.values())


def ingredients_of(key: str) -> dict[str, str]:
    """Return the named ingredients of *key*, in key order; a ProblemError where it is no key."""
    return kind_of(key).ingredients(key)


def work_of(key: str) -> Work | None:
    """Return the least work of the problem *key*; None where its key does not say enough."""
    kind = kind_of(key)
    return None if kind.work is None else kind.work(kind.ingredients(key))


def operations_of(key: str) -> Work | None:
    """Return `work_of` *key* without its bytes; None where the key does not say its operations.

    What a kernel writes may stay in the L2 while it is timed, so bytes bound a time less well.
    """
    work = work_of(key)
    return replace(work, moved=0) if work is not None and work.flops else None


def product_of(key: str) -> str | None:
    """Return the product that *key* is about, equal for keys of every kind; None without such."""
    if not kind_of(key).is_product:
        return None
    named = ingredients_of(key)
    sizes = " ".join(f"{name}={named[name]}" for name in _PRODUCT if name in named)
    return f"{named['op']} {sizes} {named['dtype']}"


def linears_of(key: str) -> Sequence[Linear]:
    """Return each linear that asks for *key* where its weight is frozen."""
    kind = kind_of(key)
    return () if kind.linears is None else kind.linears(key)


# `nearest_row` and `neighbours_of`: rows of a table whose problems are similar to a given key.

MOST_NEIGHBOURS: Final = 8
_SHAPE: Final = re.compile(r"\[([0-9a-z,.]+)\]")  # of an operand in an epilogue
_EQUAL_INGREDIENTS: Final = ("op", "dtype", "dtype_b", "a", "b", "a2", "b2", "out")
_PRECISIONS: Final = ("dtype", "fp32")
_GEMM_SIZES: Final = ("batch", "m", "n", "k")
_PRODUCT: Final = (*_GEMM_SIZES, "a", "b")


def nearest_row(key: str, rows: Iterable[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the most similar of the keys *rows*, and in what it differs from *key*.

    Only rows whose first words, `Kind.fixed` of them, are those of *key* count: its op or kernel.
    Without such a row those of the same sizes in another precision count, where inductor may ask
    for another op. Sizes of an epilogue's operands that are those of the GEMM are no difference of
    their own. Most similar is the row with the fewest differing ingredients, then with the closest
    `Kind.nearest_by`, then the first in key order. Returns ``(None, ())`` when no row counts.
    """
    kind = kind_of(key)
    asked = kind.ingredients(key)
    start = "".join(f"{word} " for word in key.split(" ", kind.fixed)[: kind.fixed])
    best: tuple[tuple[bool, int, int, str], tuple[str, ...]] | None = None
    for row in rows:
        is_other = not row.startswith(start)
        if is_other and kind_of(row) is not kind:
            continue
        parts = kind.ingredients(row)
        sizes = [name for name in kind.nearest_by if name in parts and name in asked]
        distance = sum(abs(_low(parts[name]) - _low(asked[name])) for name in sizes)
        is_precise = all(parts.get(name) == asked.get(name) for name in _PRECISIONS)
        if is_other and (distance or not sizes or is_precise):
            continue
        differences = _differences(parts, asked)
        rank = (is_other, len(differences), distance, row)
        if best is None or rank < best[0]:
            best = (rank, differences)
    return (None, ()) if best is None else (best[0][3], best[1])


def _differences(row: Mapping[str, str], asked: Mapping[str, str]) -> tuple[str, ...]:
    names = [*asked, *(name for name in row if name not in asked)]
    return tuple(
        f"{name}: row {row.get(name, 'absent')}, here {asked.get(name, 'absent')}"
        for name in names
        if row.get(name) != asked.get(name)
        and not (name == "epilogue" and _in_sizes(row) == _in_sizes(asked))
    )


def _in_sizes(parts: Mapping[str, str]) -> str:
    rows, columns = parts.get("m"), parts.get("n")

    def name_sizes(shape: re.Match[str]) -> str:
        *outer, last = shape[1].split(",")
        named = ["m" if size == rows else size for size in outer]
        return f"[{','.join([*named, 'n' if last == columns else last])}]"

    return _SHAPE.sub(name_sizes, parts.get("epilogue", ""))


def neighbours_of(
    key: str, rows: Mapping[str, Row], most: int = MOST_NEIGHBOURS
) -> tuple[Winner, ...]:
    """Return the different template winners of at most *most* *rows* nearest to a GEMM *key*.

    Only trusted rows of the same op, dtypes and operand orders are neighbours. Distance is measured
    by ratio, in logarithms summed over batch, m, n and k: twice as large is as far as half as
    large. Rows at the same distance are taken in key order.
    """
    asked = GEMM.ingredients(key)
    near: list[tuple[float, str]] = []
    for other, row in rows.items():
        is_template = row.winner.family is Family.TEMPLATE and row.untrusted is None
        if is_template and kind_of(other) is GEMM:
            parts = GEMM.ingredients(other)
            names = _EQUAL_INGREDIENTS
            if all(_strideless(parts.get(n)) == _strideless(asked.get(n)) for n in names):
                near.append((_distance(parts, asked), other))
    winners = dict.fromkeys(rows[other].winner for _, other in sorted(near))
    return tuple(winners)[:most]


def _strideless(ingredient: str | None) -> str | None:
    return None if ingredient is None else ingredient.partition("/")[0].partition("@")[0]


def _distance(row: Mapping[str, str], asked: Mapping[str, str]) -> float:
    sizes = ((_low(row.get(name, "1")), _low(asked.get(name, "1"))) for name in _GEMM_SIZES)
    # A size may be 0, which has no ratio.
    return round(sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in sizes), 9)


def _low(size: str) -> int:
    return int(size.partition("..")[0])
