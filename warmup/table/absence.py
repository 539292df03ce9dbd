"""`absence_of`: why a table has no row for a key."""

from __future__ import annotations

from warmup.core.errors import ProblemError
from warmup.core.layers_form import current_bucket, current_form
from warmup.core.miss_reasons import MissReason
from warmup.keys.registry import kind_of
from warmup.table.built_forms import BuiltForms


def absence_of(key: str, forms: BuiltForms) -> MissReason:
    """Return why *key* has no row in a table that was built in *forms*.

    It is no key; or the bucket that this thread compiles was not built in the form that it
    compiles; or the key's range or its sizes were not built.
    """
    kind = kind_of(key)
    try:
        parts = kind.ingredients(key)
    except ProblemError:
        return MissReason.NOT_DESCRIBED
    if current_form() not in forms.of(current_bucket()):
        return MissReason.OTHER_FORM
    is_dynamic = any(".." in parts.get(name, "") for name in kind.ranges)
    return MissReason.DYNAMIC_DIM if is_dynamic else MissReason.NOT_IN_TABLE
