"""Stores under faults: damaged, cut off, foreign, written by many at once, and killed writers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.core.errors import StoreError, TableError
from warmup.core.rows import Row
from warmup.table import Table
from warmup.table.codec import encode
from warmup.table.row_store import RowStore
from warmup.table.row_store.row_segment import read_segment, write_segments
from warmup.table.row_store.served_versions import ServedVersions
from warmup.table.row_store.sweep import sweep
from warmup.table.row_store.table_view import view_like

PROGRAMS = Path(__file__).resolve().parents[2] / "programs"
MakeTable = Callable[..., Table]

ADD = """
import sys
from pathlib import Path
from warmup.table.row_store import RowStore
from warmup.table.store import read
# go
for path in sys.argv[2:]:
    RowStore(sys.argv[1]).add(read(Path(path)))
"""


@pytest.fixture
def table(
    make_table: MakeTable, make_key: Callable[..., str], make_row: Callable[..., Row]
) -> Table:
    """A table of 40 rows."""
    return make_table({make_key(m): make_row(BLOCK_M=m) for m in range(1, 41)})


@pytest.fixture
def store(tmp_path: Path, table: Table) -> RowStore:
    """A store with the rows of `table` in one file."""
    store = RowStore(str(tmp_path / "rows"))
    store.add(table)
    return store


def row_file(store: RowStore) -> Path:
    """Return the only row file of *store*."""
    (path,) = Path(store.location).glob("groups/*/*.rows")
    return path


def stored_rows(store: RowStore) -> int:
    """Return the number of rows in the intact files of *store*."""
    segments = (one for group in store.load_all() for one in group.segments.values())
    return sum(len(one.lines) for one in segments)


def cut(path: Path) -> None:
    """Take the last tenth of the file."""
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 10])


def flip(path: Path) -> None:
    """Change one bit in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    """Leave a file without content."""
    path.write_bytes(b"")


def replace(path: Path) -> None:
    """Put another file in its place."""
    path.write_bytes(b"#!/bin/sh\n")


@pytest.mark.parametrize("damage", [cut, flip, empty, replace])
def test_a_damaged_file_is_refused_and_repaired(
    store: RowStore, table: Table, damage: Callable[[Path], None]
) -> None:
    """Reading names the file and the repair; a gc sets it aside; adding the table again mends."""
    path = row_file(store)
    damage(path)
    with pytest.raises(StoreError, match=rf"{path.name[:16]}.*damaged.*warmup store gc"):
        store.view(table)
    swept = sweep(store, ServedVersions())
    assert [name.rpartition("/")[2] for name in swept.set_aside] == [path.name]
    assert (Path(store.location) / "damaged" / path.name).exists()
    store.add(table)
    assert view_like(store, table).table == table


def test_whole_rows_of_a_cut_file_are_kept(store: RowStore, table: Table) -> None:
    """What stands before the cut is right, since the file is read from its begin."""
    cut(row_file(store))
    swept = sweep(store, ServedVersions())
    assert 0 < swept.salvaged < 40
    kept = view_like(store, table)
    assert len(kept.table.rows) == swept.salvaged
    assert all(table.rows[key] == row for key, row in kept.table.rows.items())


def test_a_file_that_lost_its_last_bytes_keeps_its_rows(store: RowStore, table: Table) -> None:
    """All rows are whole, so that the file written anew has the name of the damaged file."""
    path = row_file(store)
    path.write_bytes(path.read_bytes()[:-3])
    swept = sweep(store, ServedVersions())
    assert (swept.rows, swept.salvaged) == (len(table.rows), len(table.rows))
    assert stored_rows(store) == len(table.rows)


def test_rows_that_were_added_again_stay(store: RowStore, table: Table) -> None:
    """A damaged file whose rows were added again, as its error says, costs none of them."""
    flip(row_file(store))
    store.add(table)
    assert sweep(store, ServedVersions()).rows == len(table.rows)
    assert stored_rows(store) == len(table.rows)


def test_a_damaged_file_does_not_stop_an_addition(
    store: RowStore, table: Table, make_table: MakeTable
) -> None:
    """Finished rows are written whatever else is there, and the damage is reported."""
    flip(row_file(store))
    added = store.add(make_table())
    assert (len(added.added), len(added.damaged)) == (2, 1)


@pytest.mark.parametrize("name", ["warmup-store.json", "group.json"])
@pytest.mark.parametrize("content", [None, "", '{"format": 1'])
def test_lost_descriptions_are_written_again(
    store: RowStore, table: Table, name: str, content: str | None
) -> None:
    """The rows say all that the other files say: a gc writes these again, and no row is lost."""
    (path,) = Path(store.location).rglob(name)
    path.unlink()
    if content is not None:
        path.write_text(content)
    sweep(store, ServedVersions())
    json.loads(path.read_text())
    assert view_like(store, table).table == table


def test_a_folder_of_something_else_is_refused(tmp_path: Path, table: Table) -> None:
    """Nothing is written into it, and nothing of it is taken for rows."""
    (tmp_path / "notes.txt").write_text("mine")
    for act in (RowStore(str(tmp_path)).add, RowStore(str(tmp_path)).view):
        with pytest.raises(StoreError, match="is no store of rows, and not empty"):
            act(table)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_newer_store_is_refused(store: RowStore, table: Table) -> None:
    """Also by a gc, which does not touch it."""
    marker = Path(store.location) / "warmup-store.json"
    marker.write_text('{"format": 2, "kind": "warmup rows"}\n')
    for act in (store.add, store.view, lambda _: sweep(store, ServedVersions())):
        with pytest.raises(StoreError, match="format 2 is not that of this warmup"):
            act(table)
    assert '"format": 2' in marker.read_text()


def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path: Path, table: Table) -> None:
    """A file where the folder should be is named in a warmup error."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TableError, match="file"):
        RowStore(str(tmp_path / "file")).add(table)


def test_hostile_rows_are_refused_when_they_are_taken(
    store: RowStore, table: Table, make_key: Callable[..., str]
) -> None:
    """A file with a right digest and a row that no table may have answers nothing."""
    origin = next(iter(store.load(store.groups()[0]).segments.values())).origins
    number, text = next(iter(origin.items()))
    key = make_key(999)
    line = key.encode() + b'\t{"winner":{"uid":"; import os"},"evidence":{}}\t' + number
    ((name, content),) = write_segments([line], {number: text})
    (row_file(store).parent / name).write_bytes(content)
    with pytest.raises(TableError, match="not a valid table"):
        store.view(table).get(key)


def test_a_file_that_unpacks_to_too_much_is_refused() -> None:
    """Whoever names a small file by its digest cannot fill the memory."""
    import hashlib
    import zlib

    engine = zlib.compressobj(1)
    content = b"".join(engine.compress(bytes(2**24)) for _ in range(17)) + engine.flush()
    name = f"{hashlib.sha256(content).hexdigest()}.1.rows"
    with pytest.raises(StoreError, match="no rows of this warmup"):
        read_segment("s", name, content)


def test_many_small_files_become_few(
    tmp_path: Path,
    make_table: MakeTable,
    make_key: Callable[..., str],
    make_row: Callable[..., Row],
) -> None:
    """Each of 150 additions is found again, and the store has at most 65 row files."""
    store = RowStore(str(tmp_path))
    for m in range(1, 151):
        store.add(make_table({make_key(m): make_row(BLOCK_M=m)}))
    assert len([*tmp_path.glob("groups/*/*.rows")]) <= 65
    assert len(view_like(store, make_table(), every=True).table.rows) == 150


def test_writers_at_the_same_time_lose_nothing(
    tmp_path: Path,
    make_table: MakeTable,
    make_key: Callable[..., str],
    make_row: Callable[..., Row],
    run_together: Callable[..., list[subprocess.Popen[str]]],
) -> None:
    """Four processes add ten tables each to a store that none of them has made."""
    words = []
    for writer in range(4):
        paths = []
        for number in range(10):
            path = tmp_path / f"{writer}-{number}.json"
            row = {make_key(1 + number, n=1 + writer): make_row(BLOCK_M=number + 1)}
            path.write_text(encode(make_table(row)))
            paths.append(str(path))
        words.append([str(tmp_path / "rows"), *paths])
    for process in run_together(ADD, words):
        assert process.communicate(timeout=30)[1] == ""
    store = RowStore(str(tmp_path / "rows"))
    assert len(view_like(store, make_table(), every=True).table.rows) == 40


def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    """Of writers that are killed at random moments every acknowledged row is found again."""
    command = [sys.executable, str(PROGRAMS / "kill_store_writers.py"), str(tmp_path), "4", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout or "{}")
    assert (done.stderr, found.get("lost"), found.get("damaged")) == ("", 0, 0)
    assert found["noted"] > 10
