"""Keys of kind ``reduction``: their ingredients, and which text is refused."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from warmup.core.errors import ProblemError
from warmup.keys.reduction import REDUCTION, ReductionProblem
from warmup.keys.registry import check_key, kind_of, nearest_row

NORM = ReductionProblem(
    ops=("welford_reduce",),
    x=10960,
    r=768,
    hint="inner",
    reads=("bf16", "f32"),
    writes=("bf16",),
    body="sum of x",
)
CHANGES: dict[str, object] = {
    "ops": ("max", "sum"),
    "x": 4096,
    "r": 769,
    "hint": "outer",
    "reads": ("bf16",),
    "writes": ("bf16", "f32"),
    "body": "sum of y",
}


def test_a_key_has_every_ingredient_in_a_fixed_form() -> None:
    """The key is kind, ops, sizes, hint, dtypes and a hash of the body, in this order."""
    start = "reduction welford_reduce x=10960 r=768 hint=inner reads=bf16,f32 writes=bf16 body="
    assert NORM.key.startswith(start)
    check_key(NORM.key)
    assert kind_of(NORM.key) is REDUCTION
    # Every ingredient is in the key.
    assert CHANGES.keys() == {field.name for field in fields(ReductionProblem)}
    keys = {replace(NORM, **{name: value}).key for name, value in CHANGES.items()}  # type: ignore[arg-type]
    assert len(keys | {NORM.key}) == len(CHANGES) + 1
    # A reduction that reads nothing has a key.
    assert " reads=none writes=bf16 " in replace(NORM, reads=()).key
    # Whatever inductor calls its hint, a key has lower-case words only.
    for hint in ("", "Inner", "inner r=1"):
        with pytest.raises(ProblemError):
            _ = replace(NORM, hint=hint).key


def test_the_nearest_row_has_the_nearest_number_of_rows() -> None:
    near, far = replace(NORM, x=8192).key, replace(NORM, x=16).key
    assert nearest_row(NORM.key, {far: None, near: None})[0] == near  # type: ignore[dict-item]
