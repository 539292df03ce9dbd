"""Union and difference of tables. Conflicts are always reported, never dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warmup.core.errors import TableMergeError
from warmup.core.rows import Row
from warmup.core.runtime import compare_runtimes
from warmup.keys.order import natural_order
from warmup.table.schema import Table, compare_policies


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two tables; keys in natural order."""

    context: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[tuple[str, Row, Row], ...]

    @property
    def is_empty(self) -> bool:
        """Whether the tables are the same in rows and context."""
        return not (self.context or self.only_a or self.only_b or self.changed)


def combine(tables: Sequence[Table]) -> tuple[Table, tuple[str, ...]]:
    """Return the union of *tables* and one line per conflict; the newest table's row is taken.

    The provenance and policy are the newest table's. All tables must be for one device and runtime.
    """
    ordered = sorted(tables, key=lambda table: table.provenance.created)
    rows: dict[str, Row] = {}
    conflicts: list[str] = []
    for table in ordered:
        for key, row in table.rows.items():
            if key in rows and rows[key].winner != row.winner:
                conflicts.append(f"{key}: {rows[key].winner} or {row.winner}")
            rows[key] = row
    return replace(ordered[-1], rows=rows), tuple(conflicts)


def merge(a: Table, b: Table, prefer: str | None = None) -> Table:
    """Return the union of two tables for one device, runtime and policy.

    *prefer* settles keys with two winners: ``a``, ``b`` or ``faster`` (the lower measured time).
    Equal winners keep the evidence of the faster measurement.

    Raises:
        TableMergeError: provenance or policy differ, or winners do and *prefer* is None.
    """
    context = _context_differences(a, b, hard_only=True)
    if context:
        raise TableMergeError(
            context, "only tables of one device, runtime and policy can be merged"
        )
    rows = dict(a.rows)
    conflicts: list[str] = []
    for key, theirs in b.rows.items():
        mine = rows.get(key)
        if mine is None or mine.winner == theirs.winner:
            rows[key] = theirs if mine is None else _faster(mine, theirs)
        elif prefer is None:
            conflicts.append(f"{key}: {mine.winner} or {theirs.winner}")
        elif prefer != "a":
            rows[key] = theirs if prefer == "b" else _faster(mine, theirs)
    if conflicts:
        raise TableMergeError(tuple(conflicts), "settle them with --prefer a, b or faster")
    older = min(a, b, key=lambda table: table.provenance.created)
    return replace(older, rows=rows)


def diff(a: Table, b: Table) -> Difference:
    """Return what differs between *a* and *b*: context fields, missing keys, changed winners."""
    shared = sorted(a.rows.keys() & b.rows.keys(), key=natural_order)
    return Difference(
        context=_context_differences(a, b, hard_only=False),
        only_a=tuple(sorted(a.rows.keys() - b.rows.keys(), key=natural_order)),
        only_b=tuple(sorted(b.rows.keys() - a.rows.keys(), key=natural_order)),
        changed=tuple(
            (key, a.rows[key], b.rows[key])
            for key in shared
            if a.rows[key].winner != b.rows[key].winner
        ),
    )


def _context_differences(a: Table, b: Table, *, hard_only: bool) -> tuple[str, ...]:
    found = [
        f"{m.field}: {m.expected} and {m.found}"
        for m in compare_runtimes(a.provenance.runtime, b.provenance.runtime)
        if m.is_hard or not hard_only
    ]
    found += [
        f"{field}: {mine} and {theirs}"
        for field, mine, theirs in compare_policies(a.policy, b.policy)
    ]
    return tuple(found)


def _faster(mine: Row, theirs: Row) -> Row:
    return theirs if theirs.evidence.time_us < mine.evidence.time_us else mine
