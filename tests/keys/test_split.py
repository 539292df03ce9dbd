"""Keys of kind ``split``: their ingredients, what a build tries, and which winners are refused."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Winner
from warmup.keys.registry import check_key, kind_of, work_of
from warmup.keys.split import SPLIT, SplitProblem, parts_of, split_into

SUM = SplitProblem(
    op="sum",
    x=8,
    r=1 << 20,
    dtype="f32",
    out="f32",
    reads=("bf16",),
    hint="inner",
    rule=128,
    is_read_again=False,
)
CHANGES: dict[str, object] = {
    "op": "max",
    "x": 16,
    "r": 1 << 19,
    "dtype": "f64",
    "out": "bf16",
    "reads": ("bf16", "f32"),
    "hint": "outer",
    "rule": 64,
    "is_read_again": True,
}


def test_a_key_reads_as_documented() -> None:
    expected = "split sum x=8 r=1048576 f32 out=f32 reads=bf16 hint=inner rule=128 input=once"
    assert expected == SUM.key
    check_key(SUM.key)
    assert kind_of(SUM.key) is SPLIT
    assert SPLIT.label(SUM.key) == "sum x=8 r=1048576 f32 out=f32 hint=inner input=once"


def test_every_ingredient_is_in_the_key() -> None:
    assert CHANGES.keys() == {field.name for field in fields(SplitProblem)}
    keys = {replace(SUM, **{name: value}).key for name, value in CHANGES.items()}  # type: ignore[arg-type]
    assert len(keys | {SUM.key}) == len(CHANGES) + 1
    # Whatever inductor calls its hint, a key has lower-case words only.
    with pytest.raises(ProblemError):
        _ = replace(SUM, hint="inner r=1").key


def test_the_rule_none_half_and_twice_are_tried() -> None:
    """The rule comes first, each number once."""
    for rule, parts in ((128, [128, 1, 64, 256]), (2, [2, 1, 4]), (3, [3, 1, 6])):
        assert list(replace(SUM, rule=rule).variants) == [split_into(number) for number in parts], (
            rule,
            parts,
        )


def test_no_part_has_fewer_than_two_elements() -> None:
    """Twice the rule is left out where it would leave less to reduce."""
    assert list(replace(SUM, r=32, rule=16).variants) == [
        split_into(number) for number in (16, 1, 8)
    ]


def test_a_winner_that_cannot_be_forced_is_refused() -> None:
    """A table is not trusted: a number of parts is from 1 to half of the elements."""
    for parts in (0, -4, 17, True, "4", None):
        assert parts_of(Winner(Family.REDUCTION, "split", (("parts", parts),)), 32) is None
    # The words of the kind ``reduction`` say no number of parts.
    assert parts_of(Winner(Family.REDUCTION, "persistent"), 32) is None
    assert parts_of(split_into(16), 32) == 16


def test_a_key_bounds_the_bytes_of_its_region() -> None:
    """Each element is read once at least; nothing is known where no input has all of them."""
    work = work_of(replace(SUM, reads=("bf16", "f32")).key)
    assert work is not None
    assert (work.moved, work.most_moved) == (8 * (1 << 20) * 6, 64 * 2 * 8 * (1 << 20) * 4)
    assert work_of(replace(SUM, reads=()).key) is None
