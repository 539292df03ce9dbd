"""`library_winner` and `template_winner`: kernels that other tools name, as winners of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from warmup.core.rows import Family, Winner

# The library's kernels by inductor's names for them; their uid has `aten::` before the name.
LIBRARY_NAMES: Final = frozenset(
    {
        *("mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm"),
        *("_mkl_linear", "_linear_pointwise"),
    }
)
# Tuning kwargs of a template; all others follow from the operands. The highest value of each, and
# whether it is a power of two.
_TUNED_KWARGS: Final[Mapping[str, tuple[int, bool]]] = {
    "BLOCK_M": (1024, True),
    "BLOCK_N": (1024, True),
    "BLOCK_K": (1024, True),
    "GROUP_M": (1024, False),
    "num_stages": (16, False),
    "num_warps": (32, True),
}
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
        return "the name of the template is none"
    if name == SPLIT_TEMPLATE:
        return _split_winner(kwargs)
    tuned: dict[str, int] = {}
    for kwarg, (most, is_power) in _TUNED_KWARGS.items():
        value = kwargs.get(kwarg)
        if type(value) is not int:
            return f"{kwarg} is not given"
        if not 1 <= value <= most or (is_power and value & (value - 1)):
            return f"{kwarg}={value} is no value that a template takes"
        tuned[kwarg] = value
    digest = source_hash if isinstance(source_hash, str) else None
    if digest is not None and _SOURCE_HASH.fullmatch(digest) is None:
        return "the hash of the template's source is none"
    return Winner(Family.TEMPLATE, f"triton::{name}", tuple(sorted(tuned.items())), digest)


def _split_winner(kwargs: Mapping[str, object]) -> Winner | str:
    splits = kwargs.get("k_split")
    if type(splits) is not int or not 1 < splits <= _MOST_SPLITS:
        return "k_split is not given"
    return Winner(Family.SUBGRAPH, SPLIT_TEMPLATE, (("k_split", splits),))
