"""`absence_of`: why a table has no row for a key."""

from __future__ import annotations

from warmup.core.errors import ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.keys.registry import kind_of


def absence_of(key: str) -> MissReason:
    """Return why *key* has no row: it is no key, or its range or its sizes were not built."""
    kind = kind_of(key)
    try:
        parts = kind.ingredients(key)
    except ProblemError:
        return MissReason.NOT_DESCRIBED
    is_dynamic = any(".." in parts.get(name, "") for name in kind.ranges)
    return MissReason.DYNAMIC_DIM if is_dynamic else MissReason.NOT_IN_TABLE
