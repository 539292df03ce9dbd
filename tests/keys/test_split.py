"""Winners of kind ``split``: the numbers of parts that a build tries, and which are refused."""

from __future__ import annotations

from warmup.core.rows import Family, Winner
from warmup.keys.reduction import SplitProblem, parts_of, split_into


def test_the_rule_none_half_and_twice_are_tried() -> None:
    """The rule comes first, each number once, and no part has fewer than two elements."""
    for r, rule, parts in (
        *((1 << 20, 128, [128, 1, 64, 256]), (1 << 20, 2, [2, 1, 4]), (1 << 20, 3, [3, 1, 6])),
        (32, 16, [16, 1, 8]),
    ):
        problem = SplitProblem(
            op="sum",
            dtype="f32",
            out="f32",
            hint="inner",
            x=8,
            r=r,
            reads=("bf16",),
            rule=rule,
            is_read_again=False,
        )
        assert list(problem.variants) == [split_into(number) for number in parts], (r, rule)


def test_a_winner_that_cannot_be_forced_is_refused() -> None:
    """A table is not trusted: a number of parts is from 1 to half of the elements."""
    for parts in (0, -4, 17, True, "4", None):
        assert parts_of(Winner(Family.REDUCTION, "split", (("parts", parts),)), 32) is None
    # The words of the kind ``reduction`` say no number of parts.
    assert parts_of(Winner(Family.REDUCTION, "persistent"), 32) is None
    assert parts_of(split_into(16), 32) == 16
