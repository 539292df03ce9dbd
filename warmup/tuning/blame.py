"""`find_to_blame`: which row makes the output of a bucket wrong.

Serving a bucket from the first rows alone is right without any row and wrong with all of them.
Bisection finds the row with which it becomes wrong, also where several rows are wrong together: it
is right with the rows before that row, and wrong with that row too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blame:
    """The row to blame, and whether the output is wrong with that row alone.

    ``key`` is None when the output is wrong without any row. ``trials`` counts how often the bucket
    was served.
    """

    key: str | None
    is_alone: bool
    trials: int


def find_to_blame(keys: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]) -> Blame:
    """Return which of *keys* makes the output wrong, after at most `most_trials` trials.

    *is_wrong* serves the bucket from the rows of the given keys alone; with all *keys* the output
    is wrong. Of several rows that are wrong only together, the last in the order of *keys* is
    found.
    """
    right, wrong, trials = 0, len(keys), 1  # right with the first `right` rows, wrong with `wrong`
    if not keys or is_wrong(()):
        return Blame(None, is_alone=False, trials=trials)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        trials += 1
        if is_wrong(keys[:middle]):
            wrong = middle
        else:
            right = middle
    key = keys[right]
    if right == 0:
        return Blame(key, is_alone=True, trials=trials)
    return Blame(key, is_alone=is_wrong((key,)), trials=trials + 1)


def most_trials(rows: int) -> int:
    """Return how many trials `find_to_blame` needs at most for so many rows."""
    return 2 + math.ceil(math.log2(max(1, rows)))
