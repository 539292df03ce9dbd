"""Table files: found in the documented order, written whole or not at all, never by a reader."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_processes import run_python, run_together
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.errors import (
    SettingsError,
    TableError,
    TableFormatError,
    TableMismatchError,
    TableNotFoundError,
    TableWriteError,
)
from warmup.core.files import LOCKS_FOLDER, locked
from warmup.table import store as store_module
from warmup.table.codec import decode, encode
from warmup.table.store import TableWriter, check_writable, find, read, write

KEY = "mm m=1 n=2 k=3 f32 a=row b=row out=f32 | epilogue=none"
WRITER = """
import sys
from pathlib import Path
from warmup.table.store import TableWriter, read
table = read(Path(sys.argv[1]))
# go
for key, row in table.rows.items():
    TableWriter(Path(sys.argv[2])).add(table.provenance, table.policy, {key: row})
"""

# Root may write anywhere, so the program becomes a user without a passwd entry first.
AS_NOBODY = """
import contextlib, os, sys
from pathlib import Path
import platformdirs, platformdirs.unix
from warmup.core.errors import WarmupError
from warmup.table import store
os.environ.pop("HOME", None)
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
folder = Path(sys.argv[1])
path = folder / "nvidia-h200" / "mlp.json"
"""


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that every user can read and nobody write, with one table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tables"
        write(folder / "nvidia-h200" / "mlp.json", make_table())
        Path(name).chmod(0o755)
        for path in (folder, folder / "nvidia-h200"):
            path.chmod(0o555)
        yield folder
        for path in (folder, folder / "nvidia-h200"):
            path.chmod(0o755)


def _contents(folder: Path) -> dict[str, bytes | None]:
    """Return every path below *folder* but those of locks, with the bytes of the files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if LOCKS_FOLDER not in path.parts
    }


def _finished(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def test_what_is_written_is_the_canonical_text_and_is_read(tmp_path: Path) -> None:
    """In folders that are made, for all to read; nothing but a lock file stays beside it."""
    path = tmp_path / "a" / "b" / "t.json"
    write(path, make_table())
    assert read(path) == make_table()
    assert path.read_bytes() == encode(make_table()).encode("ascii")
    assert sorted(each.name for each in path.parent.iterdir()) == [LOCKS_FOLDER, "t.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_no_file_is_written_that_cannot_be_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A row that no reader accepts is refused and the good file stays."""
    for time_us in (0.0, float("nan"), float("inf"), -1.0, 1e10):
        tmp_path = tmp_path_factory.mktemp("case")
        path = tmp_path / "t.json"
        write(path, make_table())
        with pytest.raises(TableError):
            write(path, make_table({make_key(): make_row(time_us=time_us)}))
        assert read(path) == make_table(), time_us


def test_a_write_that_ends_early_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or Ctrl-C before the rename, leaves the old table and no temporary file."""
    path = tmp_path / "t.json"
    write(path, make_table())
    before = _contents(tmp_path)
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
        assert _contents(tmp_path) == before, expected


def test_a_writer_that_waits_too_long_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another writer keeps becomes a TableWriteError."""
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_S", 0.1)
    path = tmp_path / "t.json"
    with locked(path, 1), pytest.raises(TableWriteError, match="another writer"):
        write(path, make_table())


def test_where_no_file_can_be_is_a_write_error(tmp_path: Path) -> None:
    """Below a file, at a folder, and in a folder where not even root can make files."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "t.json").mkdir()
    before = _contents(tmp_path)
    places = ("file/t.json", "file/deep/t.json", "t.json", "/proc/warmup/t.json")
    for path in (tmp_path / place for place in places):
        with pytest.raises(TableWriteError) as caught:
            write(path, make_table())
        assert (caught.value.path, _contents(tmp_path)) == (str(path), before)


def test_a_read_only_folder_is_a_write_error_and_stays_as_it_is(read_only: Path) -> None:
    """A writer without permission gets a TableWriteError and changes nothing."""
    before = _contents(read_only)
    code = AS_NOBODY + (
        "table = store.read(path)\n"
        "try: store.write(path, table)\n"
        "except WarmupError as error: print(type(error).__name__)\n"
    )
    done = run_python("-c", code, str(read_only))
    assert (done.stdout, done.stderr, _contents(read_only)) == ("TableWriteError\n", "", before)


def test_a_reader_needs_no_home_and_writes_nothing(read_only: Path) -> None:
    """A user without a passwd entry, HOME or permissions finds the table and leaves no file."""
    before = _contents(read_only)
    code = AS_NOBODY + (
        "found = store.discover(store.read(path).provenance.runtime, (folder,))\n"
        "print(len(found.table.rows), len(store.search_folders()) > 1)\n"
    )
    done = run_python("-c", code, str(read_only))
    assert (done.stdout, done.stderr, _contents(read_only)) == ("2 True\n", "", before)


def test_writers_at_once_lose_no_row(tmp_path: Path) -> None:
    """Eight processes adding different rows to one new file end in one table with all of them."""
    path = tmp_path / "out" / "t.json"
    rows = {make_key(m): make_row(BLOCK_M=m) for m in range(1, 41)}
    words = []
    for index in range(8):
        mine = dict(list(rows.items())[index::8])
        (tmp_path / f"{index}.json").write_text(encode(make_table(mine)))
        words.append([str(tmp_path / f"{index}.json"), str(path)])
    _finished(run_together(WRITER, words))
    assert read(path) == make_table(rows)


def test_threads_at_once_lose_no_row(tmp_path: Path) -> None:
    """Threads of one process that add different rows end in one table with all of them."""
    path, table = tmp_path / "t.json", make_table()

    def add(m: int) -> None:
        TableWriter(path).add(table.provenance, table.policy, {make_key(m): make_row(BLOCK_M=m)})

    threads = [threading.Thread(target=add, args=(m,)) for m in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read(path).rows) == sorted(make_key(m) for m in range(1, 9))


def test_a_row_that_exists_is_kept_or_replaced_on_demand(tmp_path: Path) -> None:
    table = make_table()
    write(tmp_path / "t.json", table)
    rows, writer = (
        dict.fromkeys(table.rows, make_row(BLOCK_M=999)),
        TableWriter(tmp_path / "t.json"),
    )
    assert writer.add(table.provenance, table.policy, rows) == table
    writer.add(table.provenance, table.policy, rows, redo=True)
    assert read(tmp_path / "t.json").rows == rows


def test_rows_of_another_runtime_may_not_join(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Adding rows from another device or runtime names the field and leaves the file alone."""
    for changes, said in (
        ({"sm_count": 78}, "device.sm_count: table 132, here 78"),
        ({"torch": "2.14.0"}, "torch minor: table 2.13, here 2.14"),
        ({"triton": "3.8.0"}, "triton minor: table 3.7, here 3.8"),
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        path = tmp_path / "t.json"
        write(path, make_table())
        other = make_table({}, runtime=make_runtime(**changes))
        with pytest.raises(TableMismatchError) as caught:
            TableWriter(path).add(other.provenance, other.policy, make_table().rows)
        assert (caught.value.mismatches, read(path)) == ((said,), make_table()), changes


def test_rows_of_a_newer_driver_may_join(tmp_path: Path) -> None:
    table = make_table()
    write(tmp_path / "t.json", make_table({}))
    newer = make_table(runtime=make_runtime(driver="999"))
    assert TableWriter(tmp_path / "t.json").add(newer.provenance, newer.policy, table.rows) == table


def test_rows_of_another_policy_may_not_join(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Adding rows that were accepted under another policy names what differs."""
    for changes, said in (
        ({"mode": "max-autotune"}, "policy mode: table max-autotune-gemm, here max-autotune"),
        ({"seed": 1}, "policy seed: table 0, here 1"),
        ({"options": {}}, "policy option dynamic_scale_rblock: table False, here None"),
        ({"tolerance": {"bf16": 0.5, "f32": 0.5}}, "tolerance"),
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        table = make_table()
        write(tmp_path / "t.json", table)
        policy = dataclasses.replace(table.policy, **changes)  # type: ignore[arg-type]
        with pytest.raises(TableMismatchError, match=re.escape(said)):
            TableWriter(tmp_path / "t.json").add(table.provenance, policy, {})


def test_a_damaged_file_is_not_overwritten_by_adding(tmp_path: Path) -> None:
    """Adding rows to a file that is no table says so and leaves it alone."""
    path, table = tmp_path / "t.json", make_table()
    path.write_text("{")
    with pytest.raises(TableFormatError):
        TableWriter(path).add(table.provenance, table.policy, table.rows)
    assert path.read_text() == "{"


def test_a_table_is_a_json_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    """`--out` on a folder or on another suffix is a SettingsError."""
    for name in ("t.txt", "t", "folder.json"):
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "folder.json").mkdir()
        with pytest.raises(SettingsError, match=r"is not a \.json file"):
            check_writable(tmp_path / name)


def test_checking_makes_the_folder_and_no_table(tmp_path: Path) -> None:
    """A path that can be written passes, and no table appears at it."""
    check_writable(tmp_path / "a" / "t.json")
    assert set(_contents(tmp_path)) == {"a"}


def test_the_argument_goes_before_the_environment(tmp_path: Path) -> None:
    path, absent = tmp_path / "a.json", str(tmp_path / "absent.json")
    write(path, make_table())
    assert find(path, {"WARMUP_TABLE": absent}).paths == (path,)
    assert find(None, {"WARMUP_TABLE": str(path)}).table == make_table()


def test_no_name_is_not_found() -> None:
    for environment in ({}, {"WARMUP_TABLE": ""}):
        with pytest.raises(TableNotFoundError) as caught:
            find(None, environment)
        assert caught.value.searched == ("argument", "WARMUP_TABLE"), environment


def test_a_table_that_all_can_write_is_remarked(tmp_path: Path) -> None:
    write(tmp_path / "t.json", make_table())
    (tmp_path / "t.json").chmod(0o666)
    (remark,) = find(tmp_path / "t.json", {}).remarks
    said = "can be changed by other users: every user can write the file"
    assert remark == f"{tmp_path / 't.json'} {said}"


def test_a_table_moves_between_machines_as_text(tmp_path: Path) -> None:
    """A file that git checked out with CRLF endings is the same table."""
    path = tmp_path / "t.json"
    path.write_bytes(encode(make_table()).replace("\n", "\r\n").encode())
    assert read(path) == decode(encode(make_table()), "t.json")


def test_the_assumptions_of_every_build_are_kept_once(tmp_path: Path) -> None:
    """Rows of three builds, two with the same assumption: the table has both texts, in order."""
    path, table = tmp_path / "t.json", make_table({})
    inputs = "inputs: x=[seqlen,8]:f32"
    for m, text in enumerate([inputs, "model: Net", inputs]):
        origin = dataclasses.replace(table.provenance, assumptions=(text,))
        row = {f"mm m={m + 1} n=8 k=8 f32 a=row b=col out=f32 | epilogue=none": make_row()}
        TableWriter(path).add(origin, table.policy, row)
    assert read(path).provenance.assumptions == (inputs, "model: Net")


def test_no_table_has_more_assumptions_than_can_be_read() -> None:
    """Of a hundred assumptions the last 64 stay."""
    origin = make_table().provenance.assuming(map(str, range(100)))
    assert origin.assumptions == tuple(map(str, range(36, 100)))
