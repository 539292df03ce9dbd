"""`missed_keys`: the keys of a misses document, and which of them need no measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warmup.core.method import Search
from warmup.core.rows import Row
from warmup.diagnostics.misses import MissedProblem


def missed_keys(problems: Iterable[MissedProblem]) -> dict[str, bool]:
    """Return each key once, with whether its row could not be used at serving."""
    is_stale: dict[str, bool] = {}
    for problem in problems:
        is_stale[problem.key] = is_stale.get(problem.key, False) or problem.is_stale
    return is_stale


def keys_with_row(
    missed: Mapping[str, bool], rows: Mapping[str, Row], search: Search, *, force: bool
) -> tuple[str, ...]:
    """Return the keys of *missed* that a row of *rows* answers, so that nothing is measured.

    *missed* says of each key whether its row could not be used at serving. A row that is not
    trusted, or that was searched less far than *search*, answers nothing; with *force* none does.
    """
    return tuple(
        key
        for key, is_stale in missed.items()
        if (row := rows.get(key)) is not None and not (force or is_stale)
        if row.untrusted is None
        if not row.evidence.search.is_narrower_than(search)
    )
