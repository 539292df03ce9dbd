"""All row kinds, and what can be asked of any key.

A key says its kind: the first word is the kind's name, except that GEMM keys start with their op.
"""

from __future__ import annotations

from typing import Final

from warmup.keys.gemm import GEMM
from warmup.keys.kind import Kind
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD
from warmup.keys.weight import WEIGHT

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
