"""The table to install: `find_table` finds it, and `admit` says whether it fits this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from warmup.core.errors import (
    StaleTableWarning,
    TableError,
    TableMismatchError,
    TableNotFoundError,
)
from warmup.core.notices import warn
from warmup.core.runtime import Mismatch, Runtime
from warmup.table import Table
from warmup.table.discovery import FoundTable, discover, find, first_unfit
from warmup.table.on_miss import OnMiss


def find_table(
    table: str | os.PathLike[str] | Table | None, here: Runtime, on_miss: OnMiss
) -> FoundTable:
    """Return *table* or, for None, that of ``WARMUP_TABLE`` or of a folder that is searched.

    In ``fallback``, where no table of these folders fits, the first of them: `admit` refuses it.

    Raises:
        TableError: it is missing or damaged; with ``RANK`` set, a note names the rank.
    """
    try:
        if isinstance(table, Table):
            return FoundTable(table, ())
        if table is not None or os.environ.get("WARMUP_TABLE"):
            return find(table, os.environ)
        try:
            return discover(here)
        except TableNotFoundError:
            unfit = first_unfit(here) if on_miss is OnMiss.FALLBACK else None
            if unfit is None:
                raise
            return unfit
    except TableError as error:
        if (rank := os.environ.get("RANK")) is not None:  # all ranks may print into one log
            error.add_note(f"this happened on rank {rank}")
        raise


def admit(
    found: FoundTable,
    here: Runtime,
    mismatches: Sequence[Mismatch],
    *,
    on_miss: OnMiss,
    is_allowed: bool,
) -> str | None:
    """Return why nothing of the table can be applied here, None where it is to be installed.

    What differs and is allowed, or makes no row useless, is a warning in one sentence.

    Raises:
        TableMismatchError: the table is for another device or runtime, that is not allowed, and
            *on_miss* is not ``fallback``.
    """
    hard = [mismatch for mismatch in mismatches if mismatch.is_hard]
    tuned_on = found.table.provenance.runtime
    origin = found.origin or "the table"
    summary = f"tuned on {tuned_on}, and here is {here}"
    if hard and not is_allowed and on_miss is OnMiss.FALLBACK:
        return f"{origin}: {summary}; build a table here (docs/how-to/upgrades.md)"
    if hard and not is_allowed:
        raise TableMismatchError(
            origin,
            tuple(map(str, hard)),
            'build a table here, or serve with on_miss="fallback", which goes on without a table',
            summary,
        )
    if hard:
        warn(StaleTableWarning(f"{origin}: {summary}: every lookup is a miss"))
    elif mismatches:
        differ = "; ".join(map(str, mismatches))
        warn(StaleTableWarning(f"{origin}: {differ}: timings may be off"))
    return None
