"""Bisection over rows: the row it finds, and how many trials it takes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from warmup.tuning.blame import Blame, find_to_blame, most_trials

KEYS = [f"row {number}" for number in range(100)]


@given(st.integers(1, 100), st.data())
def test_one_wrong_row_is_found_in_logarithmic_time(count: int, data: st.DataObject) -> None:
    """Wherever it stands, and never with more trials than were announced."""
    keys = KEYS[:count]
    wrong = data.draw(st.sampled_from(keys))
    tried: list[int] = []

    def is_wrong(subset: Sequence[str]) -> bool:
        tried.append(len(subset))
        return wrong in subset

    assert find_to_blame(keys, is_wrong) == Blame(wrong, is_alone=True, trials=len(tried))
    assert len(tried) <= most_trials(count)


def test_rows_that_are_wrong_together_blame_the_last() -> None:
    """Without that row the others are right, and it is not wrong alone."""

    def is_wrong(subset: Sequence[str]) -> bool:
        return {"row 2", "row 7"} <= set(subset)

    blame = find_to_blame(KEYS[:19], is_wrong)
    assert (blame.key, blame.is_alone) == ("row 7", False)


def test_without_any_row_there_is_no_row_to_blame() -> None:
    """A model that is wrong without the table costs one trial at most."""
    for keys in ([], ["row 1", "row 2"]):
        blame = find_to_blame(keys, lambda _subset: True)
        assert (blame.key, blame.trials) == (None, 1), keys
