"""The table to install: `find_table` finds it, and `admit` says whether it fits this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from warmup.core.errors import StaleTableWarning, TableError, TableMismatchError
from warmup.core.notices import warn
from warmup.core.runtime import Mismatch, Runtime
from warmup.table import Table
from warmup.table.discovery import FoundTable, discover, find


def find_table(table: str | os.PathLike[str] | Table | None, here: Runtime) -> FoundTable:
    """Return *table* or, for None, that of ``WARMUP_TABLE`` or of a folder that is searched.

    Raises:
        TableError: it is missing or damaged; with ``RANK`` set, a note names the rank.
    """
    try:
        if isinstance(table, Table):
            return FoundTable(table, ())
        if table is not None or os.environ.get("WARMUP_TABLE"):
            return find(table, os.environ)
        return discover(here)
    except TableError as error:
        if (rank := os.environ.get("RANK")) is not None:  # all ranks may print into one log
            error.add_note(f"this happened on rank {rank}")
        raise


def admit(
    found: FoundTable, here: Runtime, mismatches: Sequence[Mismatch], *, is_allowed: bool
) -> None:
    """Warn in one sentence of what differs between the table that was found and this machine.

    Raises:
        TableMismatchError: it is for another device or runtime, and that is not allowed.
    """
    hard = [mismatch for mismatch in mismatches if mismatch.is_hard]
    tuned_on = found.table.provenance.runtime
    origin = found.origin or "the table"
    if hard and not is_allowed:
        raise TableMismatchError(
            origin,
            tuple(map(str, hard)),
            "build a table here, or allow the mismatch: then no row is used (--allow-mismatch, "
            "allow_mismatch=True or WARMUP_ALLOW_MISMATCH=1)",
            f"tuned on {tuned_on}, and here is {here}",
        )
    if hard:
        effect = f"tuned on {tuned_on}, and here is {here}: every lookup is a miss"
        warn(StaleTableWarning(f"{origin}: {effect}"))
    elif mismatches:
        differ = "; ".join(map(str, mismatches))
        warn(StaleTableWarning(f"{origin}: {differ}: timings may be off"))
