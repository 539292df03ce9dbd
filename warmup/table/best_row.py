"""`best_row`: which of several rows for one key answers. The only place that decides it.

`warmup merge --prefer evidence`, the search for tables and the store of rows all decide by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from warmup.core.rows import Row, evidence_rank


def best_row(rows: Sequence[Row], near_tie: float) -> Row:
    """Return the row of *rows*, which are for one key, that answers; their order does not matter.

    A winner that some row does not trust is not served, whoever else trusts it: only rows with
    another winner can answer. Among these the better measured one answers (`evidence_rank`). Where
    none is left, a row that is not trusted is returned, so that nobody serves its winner.
    """
    if len(rows) == 1:
        return rows[0]
    refused = {row.winner for row in rows if row.untrusted is not None}
    trusted = [row for row in rows if row.winner not in refused]
    left = trusted or [row for row in rows if row.untrusted is not None]
    return min(left, key=lambda row: (evidence_rank(row.evidence, near_tie), repr(row)))


def by_trust(row_a: Row, row_b: Row) -> Row | None:
    """Return the row to take where only one of two rows is trusted, else None.

    A winner that was wrong in one model is not served in another.
    """
    if (row_a.untrusted is None) == (row_b.untrusted is None):
        return None
    trusted, other = (row_a, row_b) if row_a.untrusted is None else (row_b, row_a)
    return other if trusted.winner == other.winner else trusted


def better_measured(near_tie: float, row_a: Row, row_b: Row) -> Row:
    """Return the one of two rows that was measured better; *row_a* where both are as good."""
    return min(row_a, row_b, key=lambda row: evidence_rank(row.evidence, near_tie))
