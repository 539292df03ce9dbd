"""`key_of_selection`: the key of any selection of ``AlgorithmSelectorCache``, asked or not."""

from __future__ import annotations

from typing import Any, Final

from warmup.core.errors import ProblemError
from warmup.inductor.gemm.choices import post_op_of
from warmup.inductor.gemm.key import describe
from warmup.inductor.selections.convolution import Convolutions
from warmup.inductor.selections.grouped import GroupedProducts
from warmup.keys.gemm import COVERED, CPU_LINEAR

_LISTED_ALONE: Final = {one.name: one for one in (Convolutions(), GroupedProducts())}


def key_of_selection(name: str, choices: list[Any], inputs: Any, layout: Any) -> str | None:
    """Return the key of the selection *name* among *choices*, before anything is selected.

    None where no row kind is about it, or a key cannot describe it.
    """
    try:
        if (selection := _LISTED_ALONE.get(name)) is not None:
            return selection.key_of(choices, inputs, layout)
        if name not in COVERED:
            return None
        post_op = post_op_of(choices) if name in CPU_LINEAR else None
        return describe(name, list(inputs), layout, post_op).key
    except ProblemError:
        return None
