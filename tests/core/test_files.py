"""Outputs: regular files are replaced whole, links stay, and what is no regular file stays too."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmup.core.errors import SettingsError
from warmup.core.files import (
    open_regular,
    other_writers,
    remove_output,
    replace_bytes,
    write_output,
)

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="makes devices and other users' files")
OTHER_USER = 54321


@pytest.fixture
def null(tmp_path: Path) -> Path:
    """A device node like /dev/null."""
    node = tmp_path / "null"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    return node


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        yield tmp_path / "socket"


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a/file")
    (tmp_path / "chain").symlink_to("link")
    for text in (b"new", b"newer"):
        replace_bytes(tmp_path / "chain", text)
        assert (tmp_path / "a" / "file").read_bytes() == text
    assert [(tmp_path / name).readlink() for name in ("link", "chain")] == [
        Path("a/file"),
        Path("link"),
    ]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


@needs_root
def test_what_is_no_file_is_refused_and_stays(
    tmp_path: Path, listener: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk, a socket and a folder, however that is named; for root too."""
    monkeypatch.chdir(tmp_path)
    disk = tmp_path / "disk"
    os.mknod(disk, 0o666 | stat.S_IFBLK, os.makedev(7, 4000))
    (tmp_path / "folder").mkdir()
    for path in (disk, listener, *map(Path, ("", ".", "/", "folder"))):
        mode = path.lstat().st_mode
        said = "it is a folder" if stat.S_ISDIR(mode) else "no regular file"
        with pytest.raises(OSError, match=said):
            replace_bytes(path, b"x")
        assert path.lstat().st_mode == mode, path


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    got: list[bytes] = []
    # Opened for both, so that there is a reader before the writer comes.
    reader = os.open(tmp_path / "fifo", os.O_RDWR)
    content = b"x" * 100_000

    def drain() -> None:
        while sum(map(len, got)) < len(content):
            got.append(os.read(reader, 1 << 16))

    thread = threading.Thread(target=drain)
    thread.start()
    replace_bytes(tmp_path / "fifo", content)
    thread.join(timeout=30)
    os.close(reader)
    assert (b"".join(got), stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)) == (content, True)


def test_a_fifo_that_nobody_reads_is_an_error(tmp_path: Path) -> None:
    """Writing to a FIFO without a reader does not wait for one."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="nobody reads from it"):
        replace_bytes(tmp_path / "fifo", b"x")


def test_stdout_in_a_file_is_written_into(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where stdout is a file, its file is added to and not replaced under the process's feet."""
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        tmp_path = tmp_path_factory.mktemp("case")
        code = (
            "import sys; from pathlib import Path; from warmup.core.files import replace_bytes\n"
            "print('before', flush=True)\nreplace_bytes(Path(sys.argv[1]), b'output\\n')\n"
        )
        with (tmp_path / "out").open("ab") as out:
            number = (tmp_path / "out").stat().st_ino
            subprocess.run([sys.executable, "-c", code, name], stdout=out, check=True, timeout=60)
        found = (tmp_path / "out").stat().st_ino, (tmp_path / "out").read_text()
        assert found == (number, "before\noutput\n"), name


def test_a_file_keeps_its_mode(tmp_path_factory: pytest.TempPathFactory) -> None:
    for mode in (0o600, 0o640, 0o664, 0o755):
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "file").write_text("old")
        (tmp_path / "file").chmod(mode)
        replace_bytes(tmp_path / "file", b"new")
        found = (tmp_path / "file").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_size) == (mode, 3)


@needs_root
def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    """A file of another user, written by root, still is that user's, and private if it was."""
    (tmp_path / "file").write_text("old")
    os.chown(tmp_path / "file", OTHER_USER, OTHER_USER + 1)
    (tmp_path / "file").chmod(0o600)
    replace_bytes(tmp_path / "file", b"new")
    found = (tmp_path / "file").stat()
    facts = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
    assert facts == (OTHER_USER, OTHER_USER + 1, 0o600)


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    """A file that nobody may write stays as it is, for root too."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o444)
    with pytest.raises(PermissionError, match="the file is read-only"):
        replace_bytes(tmp_path / "file", b"new")
    found = (tmp_path / "file").stat()
    assert ((tmp_path / "file").read_text(), stat.S_IMODE(found.st_mode)) == ("old", 0o444)


def test_leftovers_of_killed_writers_are_removed_and_no_others(tmp_path: Path) -> None:
    """The next writer removes temporary files that no process has locked, of this output only."""
    import fcntl

    names = [".t.json.abcdefgh.tmp", ".t.json.zyxwvuts.tmp", ".u.json.abcdefgh.tmp", ".t.json.tmp"]
    for name in names:
        (tmp_path / name).write_text("part")
    with (tmp_path / names[1]).open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)  # as the writer that is alive
        replace_bytes(tmp_path / "t.json", b"{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "t.json"])


def test_a_file_that_another_writer_took_for_left_over_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has locked it to remove it: the output is written by way of another file."""
    import fcntl

    real, taken = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not taken:
            (name,) = tmp_path.glob(".t.json.*.tmp")
            taken.append((name, os.open(name, os.O_RDWR)))
            real(taken[0][1], fcntl.LOCK_EX)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    replace_bytes(tmp_path / "t.json", b"{}")
    ((name, other),) = taken
    os.close(other)
    assert ((tmp_path / "t.json").read_bytes(), name.exists()) == (b"{}", True)


def test_a_leftover_that_is_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".t.json.abcdefgh.tmp").symlink_to("mine")
    replace_bytes(tmp_path / "t.json", b"{}")
    assert (tmp_path / ".t.json.abcdefgh.tmp").read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free space or inodes on its filesystem"),
        (errno.EMFILE, "raise the limit of open files (ulimit -n)"),
        (errno.EROFS, "not mounted read-only"),
        (errno.EACCES, "name a file that can be written"),
    ],
    ids=errno.errorcode.get,
)
def test_the_advice_fits_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    """What to do about a full disk, or a limit, is not to make a folder writable."""

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SettingsError) as caught:
        write_output(tmp_path / "f", "x", "--out")
    assert caught.value.args[1].endswith(advice)


def test_a_path_is_one_printable_line_in_an_error(tmp_path: Path) -> None:
    """A newline and an escape in a path are escaped, and a very long path is cut."""
    with pytest.raises(SettingsError) as caught:
        write_output(tmp_path / "no\n\x1b[31m" / ("x" * 100_000), "x", "--out")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@needs_root
def test_removing_an_output_leaves_what_is_no_file(tmp_path: Path, null: Path) -> None:
    with pytest.raises(OSError, match="no regular file"):
        remove_output(null)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    remove_output(tmp_path / "link")
    remove_output(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "null"]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """Opening a FIFO or a device, which may never end, is refused at once."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(path)


def _ways(path: Path) -> str:
    return "; ".join(writer.way for writer in other_writers(path)).replace(f"{path.parent}", "HERE")


@needs_root
def test_who_else_can_write_is_seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Owner, group, mode and folder of a file count; in a sticky folder only owners replace."""
    for folder_mode, file_mode, owners, expected in (
        (0o755, 0o644, (0, 0), ""),
        (0o755, 0o664, (0, 0), ""),
        (0o755, 0o666, (0, 0), "every user can write the file"),
        (0o777, 0o644, (0, 0), "every user can write its folder HERE"),
        (0o1777, 0o644, (0, 0), ""),
        (0o755, 0o644, (OTHER_USER, 0), f"the file belongs to user {OTHER_USER}"),
        (0o755, 0o664, (0, 77), "group 77 can write the file"),
        (0o755, 0o644, (0, 77), ""),
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "file").write_text("")
        os.chown(folder / "file", *owners)
        (folder / "file").chmod(file_mode)
        folder.chmod(folder_mode)
        assert _ways(folder / "file") == expected, (folder_mode, file_mode, owners, expected)


@needs_root
def test_a_folder_of_another_user_is_seen_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("")
    os.chown(tmp_path / "theirs", OTHER_USER, OTHER_USER)
    (tmp_path / "link").symlink_to("theirs/file")
    said = [writer.way for writer in other_writers(tmp_path / "link")]
    assert said == [f"its folder {tmp_path / 'theirs'} belongs to user {OTHER_USER}"]
