"""`KINDS`: the registry of row kinds, and functions for keys of any kind.

The first word of a key is the name of its kind, except that a GEMM key starts with its op.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from warmup.core.roofline import Work
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.grouped import GROUPED
from warmup.keys.kind import Kind
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD
from warmup.keys.question import Linear
from warmup.keys.reduction import REDUCTION
from warmup.keys.split import SPLIT
from warmup.keys.weight import WEIGHT

KINDS: Final = {
    kind.name: kind for kind in (GEMM, CONVOLUTION, GROUPED, LAUNCH, PAD, REDUCTION, SPLIT, WEIGHT)
}


def kind_of(key: str) -> Kind:
    """Return the kind of *key* by its first word; the rest of the key is not checked."""
    return KINDS.get(key.partition(" ")[0], GEMM)


def covers(site: str) -> bool:
    """Return whether what is measured at *site* becomes rows of some kind."""
    return any(site in kind.sites for kind in KINDS.values())


def check_key(key: str) -> None:
    """Check that *key* is a valid key of the kind that its first word names.

    Raises:
        ProblemError: *key* is not valid.
    """
    kind_of(key).check(key)


def work_of(key: str) -> Work | None:
    """Return the least work of the problem *key*; None where its key does not say enough.

    Raises:
        ProblemError: *key* is not a key.
    """
    named = kind_of(key).work
    if named is None:
        return None
    count: Callable[[str], Work | None] = pkgutil.resolve_name(named)
    return count(key)


def operations_of(key: str) -> Work | None:
    """Return `work_of` *key* without its bytes; None where the key does not say its operations.

    What a kernel writes may stay in the L2 while it is timed, so bytes bound a time less well.

    Raises:
        ProblemError: *key* is not a key.
    """
    work = work_of(key)
    return replace(work, moved=0) if work is not None and work.flops else None


def product_of(key: str) -> str | None:
    """Return the product that *key* is about, equal for keys of every kind; None without such.

    Raises:
        ProblemError: *key* is not a key.
    """
    named = kind_of(key).product
    if named is None:
        return None
    spell: Callable[[str], str] = pkgutil.resolve_name(named)
    return spell(key)


def linears_of(key: str) -> Sequence[Linear]:
    """Return each linear that asks for *key* where its weight is frozen.

    Raises:
        ProblemError: *key* is not a key.
    """
    named = kind_of(key).linears
    return () if named is None else pkgutil.resolve_name(named)(key)


def ingredients_of(key: str) -> dict[str, str]:
    """Return the named ingredients of *key*, in key order.

    Raises:
        ProblemError: *key* is not a key.
    """
    return kind_of(key).ingredients(key)
