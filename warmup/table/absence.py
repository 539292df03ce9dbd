"""`absence_of`: why a key has no row in a table."""

from __future__ import annotations

from warmup.core.errors import ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.keys.registry import kind_of


def absence_of(key: str, *, is_other_form: bool) -> MissReason:
    """Return why *key* has no row: its form, range or sizes were not built, or it is no key."""
    kind = kind_of(key)
    try:
        parts = kind.ingredients(key)
    except ProblemError:
        return MissReason.NOT_DESCRIBED
    if is_other_form:
        return MissReason.OTHER_FORM
    is_dynamic = any(".." in parts.get(name, "") for name in kind.ranges)
    return MissReason.DYNAMIC_DIM if is_dynamic else MissReason.NOT_IN_TABLE
