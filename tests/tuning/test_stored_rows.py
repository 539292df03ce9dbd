"""Rows of a store in a build: taken when asked, written with the table, given back at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from warmup.core.errors import StoreError
from warmup.core.rows import Row
from warmup.table import Table
from warmup.table.row_store import RowStore
from warmup.table.store import read, write
from warmup.tuning.from_misses import build_problems
from warmup.tuning.progress import Progress
from warmup.tuning.report import Observer
from warmup.tuning.stored_rows import StoredRows, giving_back, open_stored

Make = Callable[..., Table]


@pytest.fixture
def table(make_table: Make) -> Table:
    """A table without rows."""
    return make_table({})


@pytest.fixture
def stored(tmp_path: Path, make_table: Make, table: Table) -> StoredRows:
    """What a build takes from a store with two rows."""
    place = str(tmp_path / "rows")
    RowStore(place).add(make_table())
    found = open_stored(place, table, dict, is_dry=False)
    assert found is not None
    return found


def progress_of(path: Path, table: Table, stored: StoredRows) -> Progress:
    """Return the progress of a build of *table* at *path* that takes from *stored*."""
    return Progress(
        path=path,
        table=table,
        replaces=False,
        observer=Observer(),
        can_search=False,
        given_up={},
        measured_peaks=lambda: None,
        stored=stored,
    )


def test_a_row_is_taken_when_it_is_asked(
    tmp_path: Path, table: Table, stored: StoredRows, make_key: Callable[..., str]
) -> None:
    """Only rows that were asked for are in the table, on disk after the flush; none is tuned."""
    progress = progress_of(tmp_path / "t.json", table, stored)
    assert len(progress.rows) == 0
    assert not progress.must_tune(make_key(560))
    assert progress.must_tune(make_key(7))
    progress.flush()
    assert [*read(tmp_path / "t.json").rows] == [*progress.rows] == [make_key(560)]
    assert stored.answered == (make_key(560),)


def test_a_row_that_is_not_trusted_is_tuned_again(
    tmp_path: Path,
    table: Table,
    make_table: Make,
    make_key: Callable[..., str],
    make_row: Callable[..., Row],
) -> None:
    """The build learns of the winner that was wrong elsewhere, and measures without it."""
    place = str(tmp_path / "rows")
    RowStore(place).add(make_table({make_key(): replace(make_row(), untrusted="wrong")}))
    found = open_stored(place, table, dict, is_dry=False)
    assert found is not None
    progress = progress_of(tmp_path / "t.json", table, found)
    assert (progress.must_tune(make_key()), found.answered) == (True, ())


def test_rows_are_given_back_when_a_build_fails(tmp_path: Path, make_table: Make) -> None:
    """What was measured before the failure is in the store, and the failure is what is raised."""
    place, path = str(tmp_path / "rows"), tmp_path / "t.json"

    def build() -> None:
        with giving_back(place, path):
            write(path, make_table())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    view = RowStore(place).view(make_table())
    assert {*view.keys()} == make_table().rows.keys()


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path, make_table: Make) -> None:
    """After a build that went well; every row is in the table."""
    (tmp_path / "rows").write_text("a file")
    write(tmp_path / "t.json", make_table())
    with (
        pytest.raises(StoreError, match="rows"),
        giving_back(str(tmp_path / "rows"), tmp_path / "t.json"),
    ):
        pass
    assert read(tmp_path / "t.json") == make_table()


def test_a_dry_run_counts_what_the_store_has(tmp_path: Path) -> None:
    """A problem of the store is known, and neither the table nor the store is made."""
    key = "mm m=16 n=96 k=64 f32 a=row b=row out=f32 | epilogue=none"
    problem = {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 3}
    document = {"schema": 1, "digests": [], "problems": [problem]}
    (tmp_path / "misses.json").write_text(json.dumps(document))
    words = {"out": tmp_path / "t.json", "device": "cpu", "store": str(tmp_path / "rows")}
    report = build_problems(tmp_path / "misses.json", dry_run=True, **words)  # type: ignore[arg-type]
    assert report.plan is not None
    assert (report.plan.missing, report.taken) == ((key,), ())
    assert [path.name for path in tmp_path.iterdir()] == ["misses.json"]
