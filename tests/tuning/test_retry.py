"""`--retry unstable`: which rows are measured again, and which evidence stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sample_tables import make_key, make_row, make_table

from warmup.core.errors import SettingsError
from warmup.core.method import Search
from warmup.core.rows import Flag, Rejection, Row, Tuned
from warmup.table.store import read
from warmup.tuning.model import revisit_for
from warmup.tuning.progress import Progress, Revisit, SearchBudget
from warmup.tuning.request import BuildOptions

DEFAULT = SearchBudget(Search.DEFAULT)
RETRY = BuildOptions(retry="unstable")
UNSTABLE = {"flags": (Flag.UNSTABLE,)}


def _with(row: Row, **changes: object) -> Row:
    return replace(row, evidence=replace(row.evidence, **changes))  # type: ignore[arg-type]


@pytest.fixture
def progress(make_progress: Callable[..., Progress]) -> Progress:
    """A retry over a table with a stable row (m=1) and an unstable one with a spread of 20 %."""
    unstable = _with(make_row("aten", 10.0), spread=0.2, **UNSTABLE)
    table = make_table({make_key(1): make_row(), make_key(2): unstable})
    revisit = revisit_for(table, DEFAULT, RETRY)
    return make_progress(table, can_search=True, revisit=revisit)


def test_only_unstable_rows_are_measured_again(progress: Progress) -> None:
    assert [progress.must_retune(make_key(m)) for m in (1, 2, 3)] == [False, True, False]
    assert not progress.is_done
    progress.save(Tuned(make_key(2), progress.rows[make_key(2)], ()))
    assert progress.is_done


def test_a_row_that_won_without_a_control_is_measured_again() -> None:
    """Older tables have such rows: the library's time was refused, and the row has no flag."""
    refused = _with(make_row(), library_us=None, rejected=((Rejection.IMPLAUSIBLE, 1),), flags=())
    wrong = _with(make_row(), library_us=None, rejected=((Rejection.WRONG, 1),), flags=())
    table = make_table({make_key(1): refused, make_key(2): wrong})
    assert revisit_for(table, DEFAULT, RETRY).retried == {make_key(1)}


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": (), "spread": 0.3},
        {"spread": 0.19, **UNSTABLE},
        {"spread": 0.2, "time_us": 9.0, **UNSTABLE},
    ],
    ids=["stable", "steadier", "as steady, and faster"],
)
def test_better_evidence_replaces_the_row(progress: Progress, changes: dict[str, object]) -> None:
    """A stable row replaces an unstable one, and a smaller spread a larger one."""
    new = _with(make_row("new", 10.0), **changes)
    progress.save(Tuned(make_key(2), new, ()))
    assert read(progress.path).rows[make_key(2)] == new
    assert progress.kept == {}


def test_noisier_evidence_leaves_the_row(progress: Progress) -> None:
    """The row stays as it was, on disk and in the report, with the reason, however fast."""
    old = progress.rows[make_key(2)]
    new = _with(make_row("new", 1.0), spread=0.31, **UNSTABLE)
    progress.save(Tuned(make_key(2), new, ()))
    assert read(progress.path).rows[make_key(2)] == old
    assert [one.row for one in progress.tuned] == [old]
    assert progress.kept == {
        make_key(2): "the new times are unstable too (spread 31.0%, and 20.0% in the table)"
    }


def test_a_kept_row_survives_a_bucket_that_fails(progress: Progress) -> None:
    """When the bucket's output is wrong its new rows are removed, and not the one that was kept."""
    old = progress.rows[make_key(2)]
    progress.save(Tuned(make_key(2), _with(make_row("new"), spread=0.5, **UNSTABLE), ()))
    progress.discard({make_key(2)}, 0)
    assert read(progress.path).rows[make_key(2)] == old


def test_a_build_without_retry_replaces_what_it_measures(progress: Progress) -> None:
    """With --force the new row is taken whatever its evidence."""
    progress.revisit = Revisit(all_rows=True)
    new = _with(make_row("new"), spread=0.5, **UNSTABLE)
    progress.save(Tuned(make_key(2), new, ()))
    assert read(progress.path).rows[make_key(2)] == new


def test_a_retry_that_makes_no_sense_is_refused() -> None:
    """Another word, all rows, and a budget for a wider search."""
    for budget, options, words in (
        (DEFAULT, {"retry": "stable"}, "write --retry unstable"),
        (DEFAULT, {"retry": "unstable", "force": True}, "--retry all"),
        (SearchBudget(Search.WIDE, 5.0), {"retry": "unstable"}, "--budget"),
    ):
        with pytest.raises(SettingsError, match=words):
            revisit_for(make_table(), budget, BuildOptions(**options))  # type: ignore[arg-type]


def test_a_row_that_was_searched_further_is_not_searched_less() -> None:
    table = make_table({make_key(1): _with(make_row(), search=Search.WIDE, **UNSTABLE)})
    with pytest.raises(SettingsError, match="add --search wide"):
        revisit_for(table, DEFAULT, RETRY)
    wide = SearchBudget(Search.WIDE)
    assert revisit_for(table, wide, RETRY).retried == {make_key(1)}
