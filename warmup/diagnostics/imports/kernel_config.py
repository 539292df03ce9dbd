"""`library_winner` and `template_winner`: kernels that other tools name, as winners of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from warmup.core.imported_config import TUNED_KWARGS, wrong_kwarg
from warmup.core.rows import Family, Winner

# The library's kernels by inductor's names for them; their uid has `aten::` before the name.
LIBRARY_NAMES: Final = frozenset(
    {
        *("mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm"),
        *("_mkl_linear", "_linear_pointwise"),
    }
)
_TEMPLATE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SOURCE_HASH: Final = re.compile(r"[0-9a-f]{8,64}")
SPLIT_TEMPLATE: Final = "decompose_k"
_MOST_SPLITS: Final = 4096


def library_winner(name: str) -> Winner | None:
    """Return the library's kernel that inductor calls *name*, None where it is no known one."""
    return Winner(Family.EXTERN, f"aten::{name}") if name in LIBRARY_NAMES else None


def template_winner(
    name: str, kwargs: Mapping[str, object], source_hash: object = None
) -> Winner | str:
    """Return the Triton template *name* with its tuning kwargs of *kwargs*, or what is missing.

    Kwargs that are not for tuning are ignored: torch derives them from the operands again.
    """
    if _TEMPLATE.fullmatch(name) is None:
        return "the text is no name of a template"
    if name == SPLIT_TEMPLATE:
        return _split_winner(kwargs)
    tuned = {kwarg: kwargs.get(kwarg) for kwarg in TUNED_KWARGS}
    if (wrong := wrong_kwarg(tuned)) is not None:
        return wrong
    digest = source_hash if isinstance(source_hash, str) else None
    if digest is not None and _SOURCE_HASH.fullmatch(digest) is None:
        return "the hash of the template's source is no hash"
    whole = {kwarg: value for kwarg, value in tuned.items() if isinstance(value, int)}
    return Winner(Family.TEMPLATE, f"triton::{name}", tuple(sorted(whole.items())), digest)


def _split_winner(kwargs: Mapping[str, object]) -> Winner | str:
    splits = kwargs.get("k_split")
    if type(splits) is not int or not 1 < splits <= _MOST_SPLITS:
        return "k_split is not given"
    return Winner(Family.SUBGRAPH, SPLIT_TEMPLATE, (("k_split", splits),))
