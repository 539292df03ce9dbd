"""The journal of a table: a saved row costs its own bytes, and no kill loses a saved row."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from other_users import public_folder, run_as_other
from own_processes import run_together
from sample_tables import EMPTY, contents, make_key, make_row, make_rows, make_runtime, make_table
from typer.testing import CliRunner

from warmup.cli.app import app
from warmup.core.errors import TableError, TableFormatError, TableWriteError
from warmup.core.files import locked
from warmup.core.rows import Row
from warmup.table import journal as journal_module
from warmup.table import store as store_module
from warmup.table.codec import digest_of, encode
from warmup.table.journal import journal_path
from warmup.table.schema import Table
from warmup.table.store import TableWriter, check_writable, discover, find, read, read_folded, write


def _begun(path: Path, *sizes: int) -> TableWriter:
    """Return a writer that has put row 1 into the table and rows of *sizes* into the journal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = TableWriter(path)
    for m in (1, *sizes):
        _add(writer, m)
    return writer


def _add(writer: TableWriter, *sizes: int, redo: bool = False) -> Table:
    return writer.add(EMPTY.provenance, EMPTY.policy, make_rows(*sizes), redo=redo)


def _names(folder: Path) -> list[str]:
    return list(contents(folder))


def test_the_last_of_10_000_rows_costs_the_bytes_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are counted at the one place where they are written; the table is not written again."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    writer = _begun(tmp_path / "t.json")
    written: list[int] = []
    write_all = journal_module._write_all

    def count(descriptor: int, data: bytes) -> None:
        written.append(len(data))
        write_all(descriptor, data)

    monkeypatch.setattr(journal_module, "_write_all", count)
    monkeypatch.setattr(store_module, "replace_bytes", None)
    for m in range(10_000, 20_000):
        _add(writer, m)
    assert len(written) == 10_000
    assert set(written[1:]) == {written[-1]}  # the first has the line before all lines
    assert written[-1] < 700


def test_a_journal_is_read_with_the_table_and_folded_into_it(tmp_path: Path) -> None:
    """All kinds of changes give the same table and digest, in the journal and folded."""
    path = tmp_path / "t.json"
    writer = _begun(path, 2, 3, 4)
    changed = make_row(BLOCK_M=128)
    writer.add(EMPTY.provenance, EMPTY.policy, {make_key(2): changed}, redo=True)
    writer.remove({make_key(3), "unknown"})
    untrusted = make_row(BLOCK_M=4)
    marked = writer.distrust({make_key(4): Row(untrusted.winner, untrusted.evidence, "wrong")})
    assumed = EMPTY.provenance.assuming(["dtype is bf16"])
    final = writer.add(assumed, EMPTY.policy, {})
    assert marked.rows[make_key(4)].untrusted == "wrong"
    assert list(final.rows) == [make_key(m) for m in (1, 2, 4)]
    assert final.rows[make_key(2)] == changed
    assert (_names(tmp_path), read(path)) == (["t.json", "t.json.journal"], final)
    digest = digest_of(read(path))
    writer.fold()
    assert (_names(tmp_path), read(path), digest_of(read(path))) == (["t.json"], final, digest)
    assert path.read_text() == encode(final)
    assert _add(writer, 5).rows.keys() - final.rows.keys() == {make_key(5)}
    assert writer.refresh() is None


def test_several_writers_take_what_others_appended(tmp_path: Path) -> None:
    """Rows of both are in the table, a known row is kept, and each sees the folds of the other."""
    path = tmp_path / "t.json"
    one, two = TableWriter(path), TableWriter(path)
    _add(one, 1)
    _add(two, 2)
    assert _add(one, 3).rows == make_rows(1, 2, 3)
    assert (two.refresh(), two.refresh()) == (read(path), None)
    other = two.add(EMPTY.provenance, EMPTY.policy, {make_key(3): make_row(BLOCK_M=9)})
    assert other.rows == make_rows(1, 2, 3)
    one.fold()
    _add(two, 4)
    one.fold()
    _add(two, 5)
    assert (_add(one, 6).rows, read(path).rows) == (make_rows(1, 2, 3, 4, 5, 6),) * 2


def test_a_line_cut_at_any_byte_loses_its_own_row_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reader and the next build say so; the build saves the row again."""
    path = tmp_path / "t.json"
    _begun(path, 2)
    table, whole = path.read_bytes(), journal_path(path).read_bytes()
    _begun(path, 3)
    longer = journal_path(path).read_bytes()
    for size in range(len(longer)):
        cut = longer[:size]
        known = make_rows(1, 2) if size >= len(whole) else make_rows(1)
        path.write_bytes(table)
        journal_path(path).write_bytes(cut)
        capsys.readouterr()
        assert read(path).rows == known, size
        is_cut = not cut.endswith(b"\n") and size > 0
        assert ("its last line is not whole" in capsys.readouterr().err) == is_cut, size
        if size % 37 in {0, 1}:
            writer = TableWriter(path)
            _add(writer, 3)
            assert ("is not whole" in capsys.readouterr().err) == is_cut, size
            expected = {**known, **make_rows(3)}
            assert read(path).rows == expected, size
            writer.fold()
            assert (read(path).rows, _names(tmp_path)) == (expected, ["t.json"]), size


class _Killed(BaseException):
    """What a fold is ended with at one of its steps."""


def test_a_fold_that_ends_at_any_step_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after the table is replaced, readers have all rows and the next build goes on."""

    def kill(*_: object) -> None:
        raise _Killed

    for place in ("store.replace_bytes", "journal.Journal.remove", "journal._write_all"):
        path = tmp_path_factory.mktemp("case") / "t.json"
        writer = _begun(path, 2, 3)
        with monkeypatch.context() as patch:
            patch.setattr(f"warmup.table.{place}", kill)
            with pytest.raises(_Killed):
                writer.fold()
        assert read(path).rows == make_rows(1, 2, 3), place
        assert _names(path.parent) == ["t.json", "t.json.journal"], place
        assert _add(TableWriter(path), 4).rows == read(path).rows == make_rows(1, 2, 3, 4), place
        check_writable(path)
        assert (read(path).rows, _names(path.parent)) == (make_rows(1, 2, 3, 4), ["t.json"]), place


def test_a_disk_that_is_full_leaves_table_and_journal_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    writer = _begun(path, 2)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = journal_path(path).read_bytes()
    for change in (lambda: _add(writer, 3), writer.fold):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(TableWriteError, match="No space left"):
                change()
        assert journal_path(path).read_bytes() == before
    assert _add(writer, 3).rows == read(path).rows == make_rows(1, 2, 3)


def _damages(path: Path) -> dict[str, Callable[[], object]]:
    """Return, by name, what makes the journal of the table at *path* unusable."""
    place, data = journal_path(path), journal_path(path).read_bytes()
    first, second, third = data.splitlines(keepends=True)
    texts = {
        "a bit of a line in the middle": data.replace(b"triton", b"Triton", 1),
        "a line in the middle that is cut": first + second[:-9] + third,
        "a line that is missing": first + third + third,
        "lines in another order": first + third + second,
        "no journal": b"hello\nworld\n",
    }
    tables = {
        "another table": make_table(make_rows(8)),
        "another policy": Table(EMPTY.provenance, replace(EMPTY.policy, seed=1), make_rows(1)),
    }
    beside = path.with_name("other")
    return {
        **{name: partial(place.write_bytes, text) for name, text in texts.items()},
        **{name: partial(path.write_text, encode(table)) for name, table in tables.items()},
        "a link": lambda: (place.rename(beside), place.symlink_to(beside)),
        "a FIFO": lambda: (place.unlink(), os.mkfifo(place)),
        "a folder": lambda: (place.unlink(), place.mkdir()),
        "too large": lambda: os.truncate(place, 257 * 1024 * 1024),
    }


def test_a_journal_that_cannot_be_used_stops_a_build_and_no_server(tmp_path: Path) -> None:
    """Every way of changing the table refuses and leaves both files; serving takes the table."""
    changes: dict[str, Callable[[Path], object]] = {
        "read": read,
        "read_folded": read_folded,
        "check_writable": check_writable,
        "add": lambda path: _add(TableWriter(path), 9),
        "write": lambda path: write(path, make_table()),
    }
    for number in range(11):
        path = tmp_path / f"{number}" / "nvidia-h200" / "t.json"
        _begun(path, 2, 3)
        damages = _damages(path)
        assert len(damages) == 11
        name, damage = [*damages.items()][number]
        damage()
        before = path.read_bytes()
        for word, change in changes.items():
            with pytest.raises(TableError) as caught:
                change(path)
            assert "t.json.journal" in str(caught.value), (name, word)
        assert (path.read_bytes(), os.path.lexists(journal_path(path))) == (before, True), name
        found = find(path, {})
        assert any("the table is used without it" in remark for remark in found.remarks), name
        for each in (found, discover(make_runtime(), (path.parent.parent,))):
            assert len(each.table.rows) == 1, name


def test_a_row_in_a_journal_is_checked_as_in_a_table(tmp_path: Path) -> None:
    """A line with a right checksum whose row no table may have is damage, also as the last."""
    path = tmp_path / "t.json"
    writer = _begun(path, 2)
    row = make_row(BLOCK_M="__import__('os')")
    with pytest.raises(TableFormatError, match="BLOCK_M"):
        writer.add(EMPTY.provenance, EMPTY.policy, {make_key(3): row})
    assert read(path).rows == make_rows(1, 2)
    forged = journal_module.Journal(journal_path(path))
    forged.read_on()
    payload = b'{"removed":["a"],"removed":["b"]}'
    forged._sum.update(payload)
    line = b"%d %b %b\n" % (len(payload), forged._sum.hexdigest()[:16].encode(), payload)
    with journal_path(path).open("ab") as file:
        file.write(line)
    with pytest.raises(TableFormatError, match="'removed' appears twice"):
        read(path)


def test_a_journal_whose_table_is_gone_stays(tmp_path: Path) -> None:
    """Its rows are measurements that nobody else has: no new table takes its place."""
    path = tmp_path / "t.json"
    _begun(path, 2)
    path.unlink()
    for change in (lambda: _add(TableWriter(path), 3), lambda: write(path, make_table())):
        with pytest.raises(TableFormatError, match="journal of another table"):
            change()
    assert _names(tmp_path) == ["t.json.journal"]


def test_a_journal_has_the_mode_of_its_table_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    _begun(path)
    path.chmod(0o640)
    _add(TableWriter(path), 2)
    assert journal_path(path).stat().st_mode & 0o777 == 0o640
    write(path, make_table())
    assert (read(path), _names(tmp_path)) == (make_table(), ["t.json"])


def test_a_reader_without_the_right_to_write_uses_both_files() -> None:
    """`show` of a user without rights reads both, and `install` never writes; `show` may fold."""
    with public_folder() as folder:
        path = folder / "tables" / "t.json"
        _begun(path, 2)
        said = run_as_other(
            "path = Path(sys.argv[1])\n"
            "print(len(store.read_folded(path).rows), len(store.find(path, {}).table.rows))\n",
            path,
        )
        assert (said, len(find(path, {}).table.rows)) == ("2 2\n", 2)
        with locked(path, 1):  # a build writes: nobody waits
            assert len(read_folded(path).rows) == 2
        assert _names(path.parent) == ["t.json", "t.json.journal"]
        shown = CliRunner().invoke(app, ["show", str(path)])
        assert (shown.exit_code, _names(path.parent)) == (0, ["t.json"])
        assert "2 of 2 rows" in shown.stdout


def test_a_reader_during_folds_always_sees_every_row(tmp_path: Path) -> None:
    """The two files are read at different moments; a pair that does not fit is read again."""
    path = tmp_path / "t.json"
    writer = _begun(path)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from warmup.table.store import read\n"
        "# go\n"
        "seen = [len(read(Path(sys.argv[1])).rows)]\n"
        "while seen[-1] < 60:\n"
        "    seen.append(len(read(Path(sys.argv[1])).rows))\n"
        "print(seen == sorted(seen))\n"
    )
    (reader,) = run_together(code, [[str(path)]])
    for m in range(2, 61):
        _add(writer, m)
        if m % 3 == 0:
            writer.fold()
    output, errors = reader.communicate(timeout=60)
    assert output == "True\n", errors
