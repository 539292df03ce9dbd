"""`--retry unstable`: which rows of a table a build measures again, and nothing else."""

from __future__ import annotations

from typing import Final

from warmup.core.errors import SettingsError
from warmup.table import Table
from warmup.tuning.budget import SearchBudget
from warmup.tuning.progress import Revisit

UNSTABLE: Final = "unstable"


def revisit_for(
    table: Table, budget: SearchBudget, *, retry: str | None = None, force: bool = False
) -> Revisit:
    """Return which rows of *table* a build measures again: all, or with *retry* unstable ones.

    Raises:
        SettingsError: *retry* is another word or cannot be combined with *force* or a budget, or an
            unstable row was searched further than this build would search.
    """
    if retry is None:
        return Revisit(all_rows=force, search=budget.first_pass)
    if retry != UNSTABLE:
        raise SettingsError(f"--retry {retry} is unknown", f"write --retry {UNSTABLE}")
    if force or budget.seconds is not None:
        other = "--force" if force else "--budget"
        raise SettingsError(f"--retry {retry} and {other} contradict each other", "give one")
    unstable = {key: row for key, row in table.rows.items() if row.evidence.is_unstable}
    for key, row in unstable.items():
        if budget.search.is_narrower_than(row.evidence.search):
            raise SettingsError(
                f"--retry {retry}: {key} was searched further than --search {budget.search}",
                f"add --search {row.evidence.search}",
            )
    return Revisit(retried=frozenset(unstable), search=budget.search)
