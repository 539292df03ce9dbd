"""Table files: found in the documented order, written whole or not at all, never by a reader."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from other_users import needs_root, public_folder, run_as_other
from own_processes import PROGRAMS, run_together
from sample_tables import EMPTY, contents, make_key, make_row, make_rows, make_runtime, make_table

from warmup.core.errors import (
    SettingsError,
    TableError,
    TableFormatError,
    TableMismatchError,
    TableWriteError,
)
from warmup.core.files import LOCKS_FOLDER, locked
from warmup.table import store as store_module
from warmup.table.codec import decode, encode
from warmup.table.store import TableWriter, check_writable, find, read, write

ROUNDS = os.environ.get("WARMUP_TESTS_KILL_ROUNDS", "12")  # 100 take about 20 s
WRITER = """
import sys
from pathlib import Path
from warmup.table.store import TableWriter, read
table = read(Path(sys.argv[1]))
# go
for key, row in table.rows.items():
    TableWriter(Path(sys.argv[2])).add(table.provenance, table.policy, {key: row})
"""
CHANGES: dict[str, Callable[[Path], object]] = {
    "add": lambda path: TableWriter(path).add(EMPTY.provenance, EMPTY.policy, make_rows(1)),
    "check_writable": check_writable,
    "write": lambda path: write(path, make_table()),
}


def test_what_is_written_is_the_canonical_text_and_is_read(tmp_path: Path) -> None:
    """In new folders, for all to read; nothing but a lock file stays beside the table."""
    path = tmp_path / "a" / "b" / "t.json"
    write(path, make_table())
    assert read(path) == make_table()
    assert path.read_bytes() == encode(make_table()).encode("ascii")
    assert sorted(each.name for each in path.parent.iterdir()) == [LOCKS_FOLDER, "t.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_table_that_no_reader_accepts_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, large = tmp_path / "t.json", make_table(make_rows(1, 2, 3))
    size = len(encode(large))
    write(path, make_table())
    wide: dict[str, Any] = {f"BLOCK_{number}": number for number in range(20_000)}
    for row in (
        make_row(**wide),
        *(make_row(time_us=time) for time in (0.0, float("nan"), float("inf"), -1.0, 1e10)),
    ):
        with pytest.raises(TableError):
            write(path, make_table({make_key(): row}))
        assert read(path) == make_table(), row
    monkeypatch.setattr(store_module, "MAX_TABLE_BYTES", size - 1)
    with pytest.raises(TableWriteError, match=f"3 rows have {size} bytes"):
        write(path, large)
    with pytest.raises(TableWriteError, match="5 rows have"):
        TableWriter(path).add(large.provenance, large.policy, large.rows)
    assert read(path) == make_table()
    monkeypatch.setattr(store_module, "MAX_TABLE_BYTES", size)
    write(path, large)
    assert read(path) == large


def test_a_write_that_ends_early_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or Ctrl-C before the rename, leaves the old table and no temporary file."""
    path = tmp_path / "t.json"
    write(path, make_table())
    before = contents(tmp_path)
    ends: tuple[tuple[BaseException, type[BaseException]], ...] = (
        (OSError(28, "No space left on device"), TableWriteError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    )
    for raised, expected in ends:

        def end(descriptor: int, error: BaseException = raised) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", end)
            with pytest.raises(expected):
                write(path, make_table({}))
        assert contents(tmp_path) == before, expected


def test_two_names_of_a_file_are_one_table_with_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link stays; whoever waits for the lock too long learns of the other writer."""
    link, target = tmp_path / "a" / "t.json", tmp_path / "b" / "real.json"
    for path in (link, target):
        path.parent.mkdir()
    link.symlink_to("../b/real.json")
    for m, path in enumerate((link, target, link), start=1):
        TableWriter(path).add(EMPTY.provenance, EMPTY.policy, make_rows(m))
    writer = TableWriter(link)
    writer.remove({make_key(3)})
    assert set(contents(target.parent)) == {"real.json", "real.json.journal"}
    writer.fold()
    assert (link.readlink(), read(target).rows) == (Path("../b/real.json"), make_rows(1, 2))
    assert set(contents(tmp_path)) == {"a", "a/t.json", "b", "b/real.json"}
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_S", 0.05)
    with locked(target, 1), pytest.raises(TableWriteError, match="another writer held"):
        write(link, make_table())


@needs_root
def test_where_no_table_can_be_is_a_write_error(tmp_path: Path) -> None:
    """Below a file, at a folder, where not even root can make files, and at a device."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "t.json").mkdir()
    before = contents(tmp_path)
    for place in ("file/t.json", "file/deep/t.json", "t.json", "/proc/warmup/t.json"):
        with pytest.raises(TableWriteError) as caught:
            write(tmp_path / place, make_table())
        assert (caught.value.path, contents(tmp_path)) == (str(tmp_path / place), before)
    os.mknod(tmp_path / "n.json", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    for name in ("add", "check_writable"):
        with pytest.raises(TableWriteError, match="it is no regular file"):
            CHANGES[name](tmp_path / "n.json")
        assert stat.S_ISCHR((tmp_path / "n.json").lstat().st_mode), name


def test_a_read_only_table_stays(tmp_path: Path) -> None:
    """A table with mode 0444 is not written, by root neither, and the advice is to make it so."""
    path = tmp_path / "t.json"
    write(path, EMPTY)
    path.chmod(0o444)
    before = contents(tmp_path)
    for name, change in CHANGES.items():
        with pytest.raises(TableWriteError, match=r"the file is read-only; make it writable"):
            change(path)
        assert (contents(tmp_path), stat.S_IMODE(path.stat().st_mode)) == (before, 0o444), name


def test_a_user_without_rights_or_home_reads_and_writes_nothing() -> None:
    """A writer hears at once that the folder is not writable, and of no other writer."""
    with public_folder() as folder:
        place = folder / "nvidia-h200"
        write(place / "mlp.json", make_table())
        place.chmod(0o555)
        before = contents(folder)
        said = run_as_other(
            "folder = Path(sys.argv[1])\n"
            "path = folder / 'nvidia-h200' / 'mlp.json'\n"
            "table = store.read(path)\n"
            "found = store.discover(table.provenance.runtime, (folder,))\n"
            "print(len(found.table.rows), len(store.search_folders()) > 1)\n"
            "for change in (lambda: store.write(path, table),\n"
            "    lambda: store.TableWriter(path.with_name('n.json')).write(table)):\n"
            "    try: change()\n"
            "    except WarmupError as error: print(error)\n",
            folder,
        )
        place.chmod(0o755)
        assert contents(folder) == before
    first, there, new = said.splitlines()
    assert first == "2 True"
    assert "cannot write the table: the file is read-only; make it writable" in there
    assert "cannot write the table: Permission denied; make its folder writable" in new


@needs_root
def test_the_lock_file_of_another_user_is_no_obstacle() -> None:
    with public_folder(0o777) as folder:
        path = folder / "t.json"
        (folder / "source.json").write_text(encode(make_table()))
        before = os.umask(0o077)
        try:
            with locked(path, 1):
                pass
        finally:
            os.umask(before)
        run_as_other(
            "store.write(Path(sys.argv[1]), store.read(sys.argv[2]))", path, folder / "source.json"
        )
        assert read(path) == make_table()


def test_writers_at_once_lose_no_row(tmp_path: Path) -> None:
    """Eight processes, then eight threads, add rows to one file, which has all of them."""
    path, rows = tmp_path / "out" / "t.json", make_rows(*range(1, 41))
    words = []
    for index in range(8):
        mine = dict(list(rows.items())[index::8])
        (tmp_path / f"{index}.json").write_text(encode(make_table(mine)))
        words.append([str(tmp_path / f"{index}.json"), str(path)])
    for process in run_together(WRITER, words):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert read(path) == make_table(rows)

    def add(m: int) -> None:
        TableWriter(path).add(EMPTY.provenance, EMPTY.policy, make_rows(m))

    threads = [threading.Thread(target=add, args=(m,)) for m in range(41, 49)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(path).rows == make_rows(*range(1, 49))


def test_killed_writers_lose_no_row_and_leave_no_file(tmp_path: Path) -> None:
    """Four writers, killed at random: no saved row is lost, the table is whole after each round."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "kill_writers.py"), str(tmp_path), ROUNDS, "20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["saved"] > 2 * int(ROUNDS)
    assert (facts["lost"], facts["left"]) == ([], ["t.json"])
    assert facts["journals"] > 0


def test_rows_join_those_of_the_same_device_runtime_and_policy(tmp_path: Path) -> None:
    """The error names each field that differs, and the file stays; a newer driver may differ."""
    path, table = tmp_path / "t.json", make_table()
    write(path, table)
    newer = make_table(runtime=make_runtime(driver="999"))
    assert TableWriter(path).add(newer.provenance, newer.policy, table.rows) == table
    runtimes: dict[str, dict[str, Any]] = {
        "device.sm_count: table 132, here 78": {"sm_count": 78},
        "torch minor: table 2.13, here 2.14": {"torch": "2.14.0"},
        "triton minor: table 3.7, here 3.8": {"triton": "3.8.0"},
    }
    policies: dict[str, dict[str, Any]] = {
        "policy mode: table max-autotune-gemm, here max-autotune": {"mode": "max-autotune"},
        "policy seed: table 0, here 1": {"seed": 1},
        "policy option dynamic_scale_rblock: table False, here None": {"options": {}},
        "tolerance": {"tolerance": {"bf16": 0.5, "f32": 0.5}},
    }
    others = {said: make_table(runtime=make_runtime(**new)) for said, new in runtimes.items()}
    for said, new in policies.items():
        others[said] = make_table(policy=dataclasses.replace(table.policy, **new))
    for said, other in others.items():
        with pytest.raises(TableMismatchError, match=re.escape(said)):
            TableWriter(path).add(other.provenance, other.policy, make_rows(9))
        assert read(path) == table, said


def test_a_damaged_file_is_not_overwritten_by_adding(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(TableFormatError):
        CHANGES["add"](tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "{"


def test_a_build_learns_first_whether_its_table_can_be_written(tmp_path: Path) -> None:
    """A folder or another suffix is a SettingsError; else there is a folder, and no table yet."""
    (tmp_path / "folder.json").mkdir()
    for name in ("t.txt", "t", "folder.json"):
        with pytest.raises(SettingsError, match=r"is not a \.json file"):
            check_writable(tmp_path / name)
    check_writable(tmp_path / "a" / "t.json")
    assert set(contents(tmp_path)) == {"a", "folder.json"}


def test_a_table_that_all_can_write_is_remarked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "t.json"
    write(path, make_table())
    path.chmod(0o666)
    (remark,) = find(path, {}).remarks
    assert remark == f"{path} can be changed by other users: every user can write the file"
    path.chmod(0o644)
    path.parent.chmod(0o777)
    (remark,) = find(path, {}).remarks
    assert remark.endswith(f"every user can write its folder {path.parent}")


def test_a_table_moves_between_machines_as_text(tmp_path: Path) -> None:
    """A file that git checked out with CRLF endings is the same table."""
    (tmp_path / "t.json").write_bytes(encode(make_table()).replace("\n", "\r\n").encode())
    assert read(tmp_path / "t.json") == decode(encode(make_table()), "t.json")
