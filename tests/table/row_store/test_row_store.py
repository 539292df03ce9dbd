"""A store of rows: what is added is found, conflicts are kept, and the better evidence answers."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup.core.errors import SettingsError
from warmup.core.rows import Flag, Row
from warmup.core.runtime import Runtime
from warmup.table import Table
from warmup.table.best_row import best_row
from warmup.table.merge import merge
from warmup.table.row_store import RowStore
from warmup.table.row_store.contents import contents_of
from warmup.table.row_store.row_group import address_of, group_of
from warmup.table.row_store.served_versions import ServedVersions, parse_served
from warmup.table.row_store.sweep import sweep
from warmup.table.row_store.table_view import view_like

MakeTable = Callable[..., Table]
MakeKey = Callable[..., str]
MakeRow = Callable[..., Row]


def unstable(row: Row) -> Row:
    """Return *row* with times that do not carry a decision."""
    return dataclasses.replace(
        row, evidence=dataclasses.replace(row.evidence, flags=(Flag.UNSTABLE,))
    )


@settings(max_examples=15)
@given(data=st.data())
def test_what_is_added_is_found(data: st.DataObject, tables: st.SearchStrategy[Table]) -> None:
    """Every row of any table comes back with its key, equal in every field, once and after a gc."""
    table = data.draw(tables)
    with tempfile.TemporaryDirectory() as folder:
        store = RowStore(folder)
        added = store.add(table)
        assert set(added.added) == table.rows.keys()
        view = view_like(store, table, every=True)
        assert (view.table.rows, view.conflicts) == (table.rows, ())
        sweep(store, ServedVersions())
        assert view_like(store, table, every=True).table == view.table


def test_a_row_is_stored_once(tmp_path: Path, make_table: MakeTable) -> None:
    """The same table, and a table with some of its rows and another date, add nothing."""
    store = RowStore(str(tmp_path / "s"))
    table = make_table()
    store.add(table)
    some = make_table(dict(list(table.rows.items())[:1]), created="2027-01-01T00:00:00Z")
    again, part = store.add(table), store.add(some)
    assert (again.added, again.known, part.added, part.known) == ((), 2, (), 1)
    assert sum(group.rows for group in contents_of(store)) == 2


def test_conflicts_are_kept_and_named(
    tmp_path: Path, make_table: MakeTable, make_key: MakeKey, make_row: MakeRow
) -> None:
    """Both winners stay with their evidence, through a gc too; the addition names the key."""
    store, key = RowStore(str(tmp_path)), make_key()
    rows = make_row(BLOCK_M=64), make_row(time_us=9.0, BLOCK_M=128)
    store.add(make_table({key: rows[0]}))
    added = store.add(make_table({key: rows[1]}))
    sweep(store, ServedVersions())
    assert added.conflicts == (key,)
    assert sorted(store.view(make_table()).rows(key), key=repr) == sorted(rows, key=repr)
    assert view_like(store, make_table({key: rows[0]})).conflicts == (key,)


def test_the_better_evidence_answers_as_in_a_merge(
    tmp_path: Path, make_table: MakeTable, make_key: MakeKey, make_row: MakeRow
) -> None:
    """A store answers with the row that `merge --prefer evidence` takes, in either order."""
    fast, slow = unstable(make_row(time_us=1.0, BLOCK_M=16)), make_row(time_us=2.0, BLOCK_M=32)
    tables = [make_table({make_key(): row}) for row in (fast, slow)]
    merged = merge(*tables, "evidence").rows[make_key()]
    for number, order in enumerate(itertools.permutations(tables)):
        store = RowStore(str(tmp_path / str(number)))
        for table in order:
            store.add(table)
        answer = store.view(tables[0]).get(make_key())
        assert answer is not None
        assert (answer.row, answer.others) == (merged, (fast,))


@given(
    times=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1.0, 2.0]), st.booleans()))
    .filter(bool)
    .map(tuple)
)
@settings(max_examples=30)
def test_the_order_of_rows_does_not_matter(
    times: tuple[tuple[int, float, bool], ...], make_row: MakeRow
) -> None:
    """Any order of rows has one answer, and a winner that some row refuses is not answered."""
    rows = [
        dataclasses.replace(make_row(time_us=us, BLOCK_M=m), untrusted="wrong" if bad else None)
        for m, us, bad in times
    ]
    answer = best_row(rows, 0.03)
    assert best_row(rows[::-1], 0.03) == answer
    refused = {row.winner for row in rows if row.untrusted}
    assert answer.untrusted is not None or answer.winner not in refused


def test_another_template_source_does_not_answer(
    tmp_path: Path, make_table: MakeTable, make_key: MakeKey, make_row: MakeRow
) -> None:
    """A row whose template has another source than the one served is kept, and is no answer."""
    store, row = RowStore(str(tmp_path)), make_row()
    winner = dataclasses.replace(row.winner, source_hash="f" * 16)
    store.add(make_table({make_key(): dataclasses.replace(row, winner=winner)}))
    view = store.view(make_table(), {row.winner.uid: "0123456789abcdef"})
    assert (view.get(make_key()), len(view.rows(make_key()))) == (None, 1)
    assert store.view(make_table(), {row.winner.uid: "f" * 16}).get(make_key()) is not None


@pytest.mark.parametrize(
    ("changes", "is_shared"),
    [
        ({"sm_count": 78}, False),
        ({"torch": "2.12.1"}, False),
        ({"triton": "3.6.0"}, False),
        ({"torch": "2.13.1", "driver": "600.1", "memory_gib": 141, "triton": "3.7.1"}, True),
    ],
)
def test_rows_are_shared_where_they_may_share_a_table(
    changes: dict[str, str],
    is_shared: bool,
    tmp_path: Path,
    make_table: MakeTable,
    make_runtime: Callable[..., Runtime],
) -> None:
    """The device class and the minors of torch and Triton count; patches and drivers do not."""
    store, other = RowStore(str(tmp_path)), make_table(runtime=make_runtime(**changes))
    store.add(make_table())
    assert (view_like(store, other).missing == ()) is is_shared
    store.add(other)
    assert len(store.groups()) == (1 if is_shared else 2)


def test_rows_of_another_policy_are_not_shared(tmp_path: Path, make_table: MakeTable) -> None:
    """Rows that were measured by another method cannot stand in the table."""
    table = make_table()
    other = dataclasses.replace(table, policy=dataclasses.replace(table.policy, seed=1))
    store = RowStore(str(tmp_path))
    store.add(table)
    assert len(view_like(store, other).missing) == 2


def test_the_address_is_of_what_must_agree(
    make_table: MakeTable,
    make_key: MakeKey,
    make_row: MakeRow,
    make_runtime: Callable[..., Runtime],
) -> None:
    """Another time or patch of torch is the same address; another key, source or minor is not."""
    row, group = make_row(), group_of(make_table())
    own = address_of(group, make_key(), row)
    patched = group_of(make_table(runtime=make_runtime(torch="2.13.4", driver="1")))
    minor = group_of(make_table(runtime=make_runtime(torch="2.14.0")))
    source = dataclasses.replace(row.winner, source_hash=None)
    assert own == address_of(patched, make_key(), make_row(time_us=3.0, BLOCK_M=16))
    others = (
        address_of(minor, make_key(), row),
        address_of(group, make_key(16), row),
        address_of(group, make_key(), dataclasses.replace(row, winner=source)),
    )
    assert own not in others


def test_unserved_versions_are_removed_on_request_only(
    tmp_path: Path, make_table: MakeTable, make_runtime: Callable[..., Runtime]
) -> None:
    """A plain gc keeps every version; with served versions the rows of others are gone."""
    store = RowStore(str(tmp_path))
    store.add(make_table())
    store.add(make_table(runtime=make_runtime(torch="2.11.0")))
    assert sweep(store, ServedVersions()).rows == 4
    swept = sweep(store, parse_served(["torch=2.13,triton=3.7"]))
    assert (swept.rows, [rows for _, rows in swept.unserved]) == (2, [2])
    assert len(store.groups()) == 1


@pytest.mark.parametrize("word", ["torch", "torch=2", "cuda=13.0", "torch=2.13 triton=3.7", ""])
def test_a_word_that_is_no_version_is_refused(word: str) -> None:
    """Nothing is removed for a word that warmup does not understand."""
    with pytest.raises(SettingsError, match="is no version"):
        parse_served([word])


def test_a_local_store_imports_neither_torch_nor_fsspec(
    run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Without a URL the extra is not needed, and a machine without torch has the store."""
    code = (
        "import sys; from warmup.table.row_store import RowStore; "
        "import warmup.cli.store, warmup.diagnostics.tables.examine; "
        "RowStore(sys.argv[1]).is_there(); "
        "print([name for name in ('torch', 'fsspec', 's3fs') if name in sys.modules])"
    )
    assert run_python("-c", code, str(tmp_path)).stdout == "[]\n"


def test_a_url_is_read_by_fsspec(make_table: MakeTable) -> None:
    """A store in fsspec's memory answers as one in a folder, after merging and a gc too."""
    pytest.importorskip("fsspec")
    store = RowStore("memory://tests-of-warmup/rows")
    table = make_table()
    assert not store.is_there()
    store.add(table)
    store.add(make_table(created="2027-01-01T00:00:00Z"))
    sweep(store, ServedVersions())
    assert view_like(store, table).table == table


def test_a_url_of_no_known_kind_is_refused() -> None:
    """The error names the URL and what to install or to name."""
    pytest.importorskip("fsspec")
    with pytest.raises(SettingsError, match="nosuch://x"):
        RowStore("nosuch://x")
