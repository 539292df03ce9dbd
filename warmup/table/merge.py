"""`merge`, `combine` and `diff`: the union and the difference of tables.

`merge` is for people, who settle conflicts; `combine` is for discovery, where the newest table
wins. Conflicts are always reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from warmup.core.device import compare_runtimes
from warmup.core.errors import TableMergeError
from warmup.core.rows import Row, evidence_rank
from warmup.keys.kind import natural_order
from warmup.table.invariance import invariance_of
from warmup.table.schema import Table, compare_policies


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
    if (row_a.untrusted is None) == (row_b.untrusted is None):
        return None
    trusted, other = (row_a, row_b) if row_a.untrusted is None else (row_b, row_a)
    return other if trusted.winner == other.winner else trusted


def better_measured(near_tie: float, row_a: Row, row_b: Row) -> Row:
    """Return the row of two that was measured better; *row_a* where both are as good."""
    return min(row_a, row_b, key=lambda row: evidence_rank(row.evidence, near_tie))


# The winner of a key that has two: see `merge`.
Preference = Literal["a", "b", "evidence", "faster"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two tables: fields of provenance and policy, and keys in natural order."""

    context: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[tuple[str, Row, Row], ...]

    @property
    def is_empty(self) -> bool:
        return not (self.context or self.only_a or self.only_b or self.changed)


def combine(tables: Sequence[Table]) -> tuple[Table, tuple[str, ...]]:
    """Return the union of *tables*, which are for one device and runtime, and a line per conflict.

    Of two rows for a key the newer table's is taken, unless only one of them is trusted. A winner
    that one table does not trust is not trusted, whichever tables have it. Provenance and policy
    are the newest table's, but ``searches`` and ``invariant`` are those of all tables.
    """
    ordered = sorted(tables, key=lambda table: table.provenance.created)
    rows: dict[str, Row] = {}
    conflicts: list[str] = []
    refused = {
        (key, row.winner): row
        for table in ordered
        for key, row in table.rows.items()
        if row.untrusted is not None
    }
    for table in ordered:
        for key, own in table.rows.items():
            row = refused.get((key, own.winner), own)
            before = rows.get(key)
            settled = None if before is None else by_trust(before, row)
            if before is not None and settled is None and before.winner != row.winner:
                conflicts.append(f"{key}: {before.winner} or {row.winner}")
            rows[key] = settled or row
    policies = [table.policy for table in tables]
    searches = frozenset.intersection(*(policy.searches for policy in policies))
    invariant = all(policy.invariant for policy in policies)
    policy = replace(ordered[-1].policy, searches=searches, invariant=invariant)
    return replace(ordered[-1], policy=policy, rows=rows), tuple(conflicts)


def merge(a: Table, b: Table, prefer: Preference | None = None) -> Table:
    """Return the union of two tables for the same device, runtime and policy.

    *prefer* decides keys with two winners: ``a``, ``b``, ``evidence`` (the better measured row) or
    ``faster`` (the lower time, however it was measured). Of two rows with the same winner the
    better measured one is taken, unless *prefer* is ``faster``. Where one row is not trusted, the
    trusted row is taken if its winner is another, else the row that is not trusted: a winner that
    was wrong in one model is not served in another. The provenance is the older table's, with the
    assumptions of both. A TableMergeError: provenance or policy differ, winners differ and *prefer*
    is None, or invariant tables have several digests for a weight.
    """
    context = _context_differences(a, b, hard_only=True)
    if context:
        raise TableMergeError(
            context, "only tables of one device, runtime and policy can be merged"
        )
    better = partial(better_measured, a.policy.timing.near_tie)
    if prefer == "faster":
        better = partial(min, key=lambda row: row.evidence.time_us)
    rows = dict(a.rows)
    conflicts: list[str] = []
    for key, row_b in b.rows.items():
        row_a = rows.get(key)
        if row_a is not None and (settled := by_trust(row_a, row_b)) is not None:
            rows[key] = settled
        elif row_a is None or row_a.winner == row_b.winner:
            rows[key] = row_b if row_a is None else better(row_a, row_b)
        elif prefer is None:
            conflicts.append(f"{key}: {row_a.winner} or {row_b.winner}")
        elif prefer != "a":
            rows[key] = row_b if prefer == "b" else better(row_a, row_b)
    if conflicts:
        raise TableMergeError(
            tuple(conflicts), "settle them with --prefer evidence, a, b or faster"
        )
    merged = replace(a, rows=rows)
    if (promise := invariance_of(merged)) is not None and promise.broken:
        raise TableMergeError(
            tuple(f"{weight}: its rows have several digests" for weight in promise.broken),
            "the tables are invariant, and together they would not be: build the buckets of one "
            "into the other, with `warmup build --invariant --out`",
        )
    older, newer = sorted((a, b), key=lambda table: table.provenance.created)
    origin = older.provenance.assuming(newer.provenance.assumptions)
    origin = origin.costing(newer.provenance.calls)
    return replace(older, provenance=origin, rows=rows)


def diff(a: Table, b: Table) -> Difference:
    """Return the difference of *a* and *b*: winners and whether they are trusted, no evidence."""
    shared = a.rows.keys() & b.rows.keys()
    changed = [key for key in shared if _differ(a.rows[key], b.rows[key])]
    return Difference(
        context=_context_differences(a, b, hard_only=False),
        only_a=tuple(sorted(a.rows.keys() - b.rows.keys(), key=natural_order)),
        only_b=tuple(sorted(b.rows.keys() - a.rows.keys(), key=natural_order)),
        changed=tuple(
            (key, a.rows[key], b.rows[key]) for key in sorted(changed, key=natural_order)
        ),
    )


def _context_differences(a: Table, b: Table, *, hard_only: bool) -> tuple[str, ...]:
    lines = [
        f"{m.field}: {m.expected} and {m.found}"
        for m in compare_runtimes(a.provenance.runtime, b.provenance.runtime)
        if m.is_hard or not hard_only
    ]
    lines += [
        f"{field}: {value_a} and {value_b}"
        for field, value_a, value_b in compare_policies(a.policy, b.policy)
    ]
    return tuple(lines)


def _differ(row_a: Row, row_b: Row) -> bool:
    trust = (row_a.untrusted is None, row_b.untrusted is None)
    return row_a.winner != row_b.winner or trust[0] != trust[1]
