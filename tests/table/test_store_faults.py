"""Table files under faults: links, other users, kills, sizes, and hostile content in bounds."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from own_processes import run_python
from sample_tables import make_key, make_row, make_table

from warmup.core.errors import SettingsError, TableError, TableFormatError, TableWriteError
from warmup.core.files import LOCKS_FOLDER, lock_path, locked
from warmup.core.rows import Row
from warmup.table import store as store_module
from warmup.table.codec import encode
from warmup.table.store import TableWriter, check_writable, find, read, write

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
ROUNDS = os.environ.get("WARMUP_TESTS_KILL_ROUNDS", "12")  # 100 take about 20 s
OTHER_USER = 54321
EMPTY = make_table({})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes other users' files")
# Runs as a user without rights of its own, who has read the table at sys.argv[1] as root.
AS_OTHER = f"""
import os, sys
from dataclasses import replace
from pathlib import Path
from warmup.core.errors import WarmupError
from warmup.table import store
path, table = Path(sys.argv[1]), store.read(Path(sys.argv[2]))
import fcntl, tempfile, filelock
os.umask(0o077)
os.setgroups([])
os.setresgid(*[{OTHER_USER}] * 3)
os.setresuid(*[{OTHER_USER}] * 3)
try:
    store.TableWriter(path).add(table.provenance, table.policy, table.rows)
    print("saved")
except WarmupError as error:
    print(error)
"""
# Peak memory in MB of reading a file, beyond what a small file takes.
PEAK = """
import resource, sys
from pathlib import Path
from warmup.core.errors import WarmupError
from warmup.serving.audit import read_misses
from warmup.table.store import read
work = read if sys.argv[1] == "table" else read_misses
peaks = []
for path in sys.argv[2:]:
    try:
        work(Path(path))
    except WarmupError as error:
        said = str(error)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(round(peaks[-1] - peaks[0]), said)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can enter and write, as /tmp; those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def _rows(*sizes: int) -> dict[str, Row]:
    return {make_key(m): make_row(BLOCK_M=m) for m in sizes}


def _names(folder: Path) -> list[str]:
    """What lies in *folder*, without the folder for lock files."""
    return sorted(path.name for path in folder.iterdir() if path.name != LOCKS_FOLDER)


def test_two_names_of_a_file_are_one_table(tmp_path: Path) -> None:
    """Rows saved through a link and through its target stand in one file, and the link stays."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    link, target = tmp_path / "a" / "t.json", tmp_path / "b" / "real.json"
    link.symlink_to("../b/real.json")
    table = make_table({})
    for m, path in enumerate((link, target, link), start=1):
        TableWriter(path).add(table.provenance, table.policy, _rows(m))
    writer = TableWriter(link)
    writer.remove({make_key(3)})
    assert _names(target.parent) == ["real.json", "real.json.journal"]
    writer.fold()
    found = link.readlink(), len(read(target).rows), _names(link.parent), _names(target.parent)
    assert found == (Path("../b/real.json"), 2, ["t.json"], ["real.json"])


def test_two_names_of_a_file_have_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the target of a link is locked, nobody writes through the link."""
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_S", 0.05)
    (tmp_path / "link.json").symlink_to("t.json")
    with (
        locked(tmp_path / "t.json", 1),
        pytest.raises(TableWriteError, match="another writer held"),
    ):
        write(tmp_path / "link.json", make_table())


CHANGES: dict[str, Callable[[Path], object]] = {
    "add": lambda path: TableWriter(path).add(EMPTY.provenance, EMPTY.policy, _rows(1)),
    "check_writable": check_writable,
    "write": lambda path: write(path, make_table()),
}


def test_a_read_only_table_stays(tmp_path: Path) -> None:
    """A table with mode 0444 is not written, by root neither, and the advice is to make it so."""
    path = tmp_path / "t.json"
    write(path, EMPTY)
    path.chmod(0o444)
    for name, change in CHANGES.items():
        with pytest.raises(TableWriteError, match=r"the file is read-only; make it writable"):
            change(path)
        found = len(read(path).rows), stat.S_IMODE(path.stat().st_mode), _names(tmp_path)
        assert found == (0, 0o444, ["t.json"]), name


@needs_root
def test_a_table_is_no_device(tmp_path: Path) -> None:
    os.mknod(tmp_path / "n.json", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    for name in ("add", "check_writable"):
        with pytest.raises(TableWriteError, match="it is no regular file"):
            CHANGES[name](tmp_path / "n.json")
        assert stat.S_ISCHR((tmp_path / "n.json").lstat().st_mode), name


def test_a_fifo_is_not_read(tmp_path: Path) -> None:
    """Reading a FIFO as a table is refused at once instead of waiting for a writer."""
    os.mkfifo(tmp_path / "t.json")
    with pytest.raises(TableFormatError, match="cannot be read: it is no regular file"):
        read(tmp_path / "t.json")


def test_a_table_that_is_too_large_to_be_read_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte more than a reader accepts is refused, with the sizes; the limit itself is not."""
    path, small = tmp_path / "t.json", make_table(_rows(1))
    large = make_table(_rows(1, 2, 3))
    size = len(encode(large))
    write(path, small)
    monkeypatch.setattr(store_module, "MAX_TABLE_BYTES", size - 1)
    with pytest.raises(TableWriteError, match=f"3 rows have {size} bytes"):
        write(path, large)
    with pytest.raises(TableWriteError, match=f"3 rows have {size} bytes"):
        TableWriter(path).add(large.provenance, large.policy, large.rows)
    assert read(path) == small
    monkeypatch.setattr(store_module, "MAX_TABLE_BYTES", size)
    write(path, large)
    assert read(path) == large


def test_a_row_that_is_too_large_to_be_read_replaces_nothing(tmp_path: Path) -> None:
    """A single row of more characters than a reader takes is refused before it is written."""
    path = tmp_path / "t.json"
    write(path, make_table({}))
    kwargs = {f"BLOCK_{number}": number for number in range(20_000)}
    with pytest.raises(TableFormatError, match="a value of more than"):
        write(path, make_table({make_key(1): make_row(**kwargs)}))
    assert read(path).rows == {}


@needs_root
def test_the_lock_file_of_another_user_is_no_obstacle(public: Path) -> None:
    """The lock file that a writer of root left does not block a user, whatever root's umask."""
    path = public / "t.json"
    before = os.umask(0o077)
    try:
        with locked(path, 1):
            pass
    finally:
        os.umask(before)
    assert lock_path(path).exists()
    (public / "source.json").write_text(encode(make_table()))
    done = run_python("-c", AS_OTHER, str(path), str(public / "source.json"))
    assert done.stdout == "saved\n", done.stderr  # type: ignore[attr-defined]
    assert _names(public) == ["source.json", "t.json"]


@needs_root
def test_a_folder_that_cannot_be_written_is_what_the_error_names(public: Path) -> None:
    """The error of a user without permission says so at once: no other writer is to blame."""
    (public / "source.json").write_text(encode(make_table()))
    public.chmod(0o755)
    done = run_python("-c", AS_OTHER, str(public / "t.json"), str(public / "source.json"))
    said = "cannot write the table: Permission denied; make its folder writable"
    assert said in done.stdout, done.stderr  # type: ignore[attr-defined]


def test_too_many_open_files_is_what_the_error_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the process is no reason to restore or to build the table again."""
    write(tmp_path / "t.json", make_table())

    def refuse(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(store_module, "open_regular", refuse)
    with pytest.raises(TableFormatError, match=r"Too many open files; raise the limit"):
        read(tmp_path / "t.json")


@needs_root
def test_a_table_in_a_folder_that_all_can_write_is_remarked(tmp_path: Path) -> None:
    write(tmp_path / "a" / "t.json", make_table())
    (tmp_path / "a").chmod(0o777)
    (remark,) = find(tmp_path / "a" / "t.json", {}).remarks
    assert remark.endswith(f"every user can write its folder {tmp_path / 'a'}")


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


def _bulk(text: str, filler: str, size: int = 20_000_000) -> str:
    """Return *text* with its mark replaced by so many characters of *filler*."""
    return text.replace("@", filler * (size // len(filler)))


HOSTILE_TABLES = {
    "empty objects": '{"a": [@{}]}',
    "objects for rows": '{"rows": {"gemm": {@"z": {}}}}',
    "objects for a row": '{"rows": {"gemm": {"%s": [@{}]}}}',
    "kinds": '{"rows": {@"gemm": {}}}',
    "one string": '{"schema": "@"}',
    "whitespace": "{ @",
    "root": "[@[]]",
}
HOSTILE_MISSES = {
    "problems": '{"schema": 1, "digests": [], "problems": [@{}]}',
    "digests": '{"schema": 1, "digests": [@""], "problems": []}',
    "unknown": '{"schema": 1, "x": [@{}]}',
}
FILLERS = {
    "kinds": '"gemm": {},',
    "objects for rows": '"a": {},',
    "one string": "x",
    "whitespace": "\n",
    "root": "[],",
    "digests": '"",',
}


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        *(("table", name, text) for name, text in HOSTILE_TABLES.items()),
        *(("misses", name, text) for name, text in HOSTILE_MISSES.items()),
    ],
)
def test_a_hostile_file_takes_little_memory(
    tmp_path: Path, kind: str, name: str, text: str
) -> None:
    """A file of 20 MB that is refused took at most 60 MB to read, and most far less."""
    text = _bulk(text.replace("%s", make_key()), FILLERS.get(name, "{},"))
    (tmp_path / "small").write_text("{}")
    (tmp_path / "large").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, kind, str(tmp_path / "small"), str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROGRAMS.parents[1],
    )
    megabytes, _, said = done.stdout.partition(" ")
    assert int(megabytes) <= 60, said


def test_a_repeated_name_among_many_is_found_in_linear_time(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """An object with 20,000 names and a repetition; comparing all with all took half a minute."""
    for text in ('{@"a0": 0}', '{"provenance": {@"a0": 0}}', '{"x": {@"a0": 0}}'):
        tmp_path = tmp_path_factory.mktemp("case")
        names = "".join(f'"a{number}": {number}, ' for number in range(20_000))
        (tmp_path / "t.json").write_text(text.replace("@", names))
        begun = time.process_time()
        with pytest.raises(TableError):
            read(tmp_path / "t.json")
        assert time.process_time() - begun < 5, text


def test_a_misses_document_may_not_be_a_fifo(tmp_path: Path) -> None:
    from warmup.serving.audit import read_misses

    os.mkfifo(tmp_path / "m.json")
    with pytest.raises(SettingsError, match="it is no regular file"):
        read_misses(tmp_path / "m.json")


def test_reading_takes_memory_for_the_rows_alone(tmp_path: Path) -> None:
    """A table of 20,000 rows takes less memory than its file has bytes, digest and checks done."""
    rows = {
        make_key(m, n=n): make_row(time_us=m + n / 7) for m in range(1, 101) for n in range(200)
    }
    (tmp_path / "small").write_text(encode(make_table()))
    (tmp_path / "large").write_text(encode(make_table(rows)))
    code = PEAK.replace("said = str(error)", "raise").replace(", said", "")
    done = subprocess.run(
        [sys.executable, "-c", code, "table", str(tmp_path / "small"), str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROGRAMS.parents[1],
    )
    assert int(done.stdout) * 1e6 < (tmp_path / "large").stat().st_size
